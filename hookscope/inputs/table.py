"""Tables of numbers in text: each row of a CSV file is a sample, each column a feature."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import torch
from torch import Tensor

from hookscope.errors import InputError
from hookscope.filekinds import AGAIN
from hookscope.inputs.reading import Asked, called, read_bytes, sha256
from hookscope.inputs.words import InputWord
from hookscope.suggest import did_you_mean

_DELIMITERS = (";", "\t", "|", ",")  # the comma last, since it may be that of decimals
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf)\s*", re.I)
_RANGE = re.compile(r"(?P<first>\d{1,9})(-(?P<last>\d{1,9}))?")
_COLUMNS = "Name the columns to take, by their header or from 0: --input {0}:0-3"


def open_one(asked: Asked, word: InputWord) -> tuple[Tensor, str]:
    """Return the numbers of a table, float32 of shape rows by columns.

    The first row is a header if none of its cells is a number. Columns are parted by the one of
    comma, semicolon, tab and bar that every row holds equally often; a lone column by none.

    Raises:
        InputError: a cell is no number, rows differ in length, or there is no such column; names
            them.
    """
    data = read_bytes(word.path)
    try:
        text = data.decode("utf-8-sig")
        rows = _rows(text)
    except UnicodeDecodeError as exc:
        raise InputError(f"{called(word.path)} is no table: it is not UTF-8.", AGAIN) from exc
    except csv.Error as exc:
        raise InputError(f"{called(word.path)} is no table: {exc}.", AGAIN) from exc
    if not rows:
        raise InputError(f"{called(word.path)} holds no row.", AGAIN)
    header = [] if any(_NUMBER.fullmatch(cell) for cell in rows[0][1]) else rows[0][1]
    body = rows[1:] if header else rows
    if not body:
        raise InputError(
            f"{called(word.path)} holds no row of numbers.",
            f"Its only row reads {', '.join(header)[:60]!r}.",
        )
    for line, row in body:
        if len(row) != len(rows[0][1]):
            raise InputError(
                f"{called(word.path)}, line {line}, has {len(row)} cells, and line {rows[0][0]} has"
                f" {len(rows[0][1])}.",
                "All rows are to have as many. Separators are comma, semicolon, tab or |.",
            )
    wanted = _columns(word, [cell.strip() for cell in header], len(rows[0][1]))
    numbers = [[_number(row, at, line, header, word) for at in wanted] for line, row in body]
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        return torch.from_numpy(np.array(numbers, dtype=np.float32)), sha256(data)


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """The rows that hold anything, each with the number of its line."""
    lines = [line for line in text.splitlines()[:100] if line.strip()]
    counts = {mark: {line.count(mark) for line in lines} for mark in _DELIMITERS}
    even = [mark for mark in _DELIMITERS if len(counts[mark]) == 1 and 0 not in counts[mark]]
    some = [mark for mark in _DELIMITERS if counts[mark] - {0}]
    delimiter = next(iter(even or some), ",")
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]


def _columns(word: InputWord, header: list[str], count: int) -> list[int]:
    """The columns that a word names after the file, or all."""
    if not word.rest:
        return list(range(count))
    found: list[int] = []
    for name in (part.strip() for part in word.rest.split(",")):
        span = _RANGE.fullmatch(name)
        if name in header:
            found.append(header.index(name))
        elif span and int(span["last"] or span["first"]) < count:
            found += range(int(span["first"]), int(span["last"] or span["first"]) + 1)
        else:
            has = f"It has {', '.join(header) or f'columns 0 to {count - 1}, without names'}."
            raise InputError(
                f"There is no column {name!r} in {word.path!r}.",
                f"{did_you_mean(name, header)} {has}".strip(),
            )
    if not found:
        raise InputError(f"{word.word!r} names no column.", _COLUMNS.format(word.path))
    return found


def _number(row: list[str], at: int, line: int, header: list[str], word: InputWord) -> float:
    cell = row[at]
    if _NUMBER.fullmatch(cell):
        return float(cell)
    where = f"column {header[at].strip()!r}" if header else f"column {at}"
    comma = "," in cell and _NUMBER.fullmatch(cell.replace(",", "."))
    raise InputError(
        f"{called(word.path)}, line {line}, {where}, holds {cell[:40]!r}, which is no number.",
        "Write decimals with a point." if comma else _COLUMNS.format(word.path),
    )
