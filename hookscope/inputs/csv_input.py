"""Tables of numbers in text: each row of a CSV file is a sample, each column a feature."""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.errors import InputError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.inputs.input_reader import ReadContext, describe_path, read_bytes, sha256
from hookscope.specs.input_spec import InputSpec
from hookscope.specs.suggestions import did_you_mean

_DELIMITERS = (";", "\t", "|", ",")  # the comma last, since it may be that of decimals
# Each digit is matched in one way only: a long cell that is no number would else take minutes.
_NUMBER = re.compile(r"\s*[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|nan|inf)\s*", re.I)
_RANGE = re.compile(r"(?P<first>\d{1,9})(-(?P<last>\d{1,9}))?")
_COLUMNS = "Name the columns to take, by their header or from 0: --input {0}:0-3"
_MOST = 64 << 20  # bytes
_SHOWN = 20  # names of columns in an error

Rows = Iterator[tuple[int, list[str]]]


def read_csv(asked: ReadContext, word: InputSpec) -> tuple[Tensor, str]:
    """Return the numbers of a table, float32 of shape rows by columns.

    The first row is a header if none of its cells is a number. Columns are parted by the one of
    comma, semicolon, tab and bar that every row holds equally often; a lone column by none.

    Raises:
        InputError: a cell is no number, rows differ in length, or there is no such column; names
            them.
    """
    data = read_bytes(word.path, _MOST, "Save the numbers with numpy.save.")
    try:
        numbers = _numbers(data.decode("utf-8-sig"), word)
    except UnicodeDecodeError as exc:
        raise InputError(
            f"{describe_path(word.path)} is no table: it is not UTF-8.", WRITE_AGAIN
        ) from exc
    except csv.Error as exc:
        raise InputError(f"{describe_path(word.path)} is no table: {exc}.", WRITE_AGAIN) from exc
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        return torch.from_numpy(numbers.astype(np.float32)), sha256(data)


def _numbers(text: str, word: InputSpec) -> NDArray[np.float64]:
    delimiter = _delimiter(text)
    rows = _rows(text, delimiter)
    line, first = next(rows, (0, []))
    if not first:
        raise InputError(f"{describe_path(word.path)} holds no row.", WRITE_AGAIN)
    header = [] if any(_NUMBER.fullmatch(cell) for cell in first) else first
    wanted = _columns(word, [cell.strip() for cell in header], len(first))
    if not header:
        rows = chain([(line, first)], rows)
    one = next(rows, None)
    if one is None:
        raise InputError(
            f"{describe_path(word.path)} holds no row of numbers.",
            f"Its only row reads {', '.join(header)[:60]!r}.",
        )
    try:  # numpy's reader is several times as fast, and does not say what is wrong
        numbers = np.loadtxt(
            io.StringIO(text),
            delimiter=delimiter,
            comments=None,
            quotechar='"',
            skiprows=line if header else 0,
            ndmin=2,
        )
        if numbers.shape[1] == len(first):
            return numbers[:, wanted]
    except ValueError:
        pass
    # float() takes more than numbers as they are written elsewhere: 1_0 and infinity.
    loose = "_" not in text and "infinity" not in text.lower()
    return _one_by_one(chain([one], rows), (line, first), header, wanted, word, loose)


def _one_by_one(
    body: Iterable[tuple[int, list[str]]],
    top: tuple[int, list[str]],
    header: list[str],
    wanted: list[int],
    word: InputSpec,
    loose: bool,
) -> NDArray[np.float64]:
    """The numbers of all rows; the first row that is not as it should be raises.

    ``loose``: whether ``float`` takes nothing in the file but what ``_NUMBER`` matches.
    """
    found = array("d")
    every = wanted == list(range(len(top[1])))
    for line, row in body:
        if len(row) != len(top[1]):
            raise InputError(
                f"{describe_path(word.path)}, line {line}, has {len(row)} cells, and line {top[0]} has"
                f" {len(top[1])}.",
                "All rows are to have as many. Separators are comma, semicolon, tab or |.",
            )
        try:
            if loose:
                found.extend([float(cell) for cell in (row if every else [row[i] for i in wanted])])
                continue
        except ValueError:
            pass
        found.extend([_number(row, at, line, header, word) for at in wanted])
    return np.array(found).reshape(-1, len(wanted))


def _delimiter(text: str) -> str:
    lines = [line for line in islice(io.StringIO(text), 100) if line.strip()]
    counts = {mark: {line.count(mark) for line in lines} for mark in _DELIMITERS}
    even = [mark for mark in _DELIMITERS if len(counts[mark]) == 1 and 0 not in counts[mark]]
    some = [mark for mark in _DELIMITERS if counts[mark] - {0}]
    return next(iter(even or some), ",")


def _rows(text: str, delimiter: str) -> Rows:
    """The rows that hold anything, each with the number of its line."""
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    for row in reader:
        if "".join(row).strip():
            yield reader.line_num, row


def _columns(word: InputSpec, header: list[str], count: int) -> list[int]:
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
            more = ", ..." if len(header) > _SHOWN else ""
            names = ", ".join(header[:_SHOWN]) + more
            has = f"It has {names or f'columns 0 to {count - 1}, without names'}."
            raise InputError(
                f"There is no column {name!r} in {word.path!r}.",
                f"{did_you_mean(name, header)} {has}".strip(),
            )
    if not found:
        raise InputError(f"{word.word!r} names no column.", _COLUMNS.format(word.path))
    return found


def _number(row: list[str], at: int, line: int, header: list[str], word: InputSpec) -> float:
    cell = row[at]
    if _NUMBER.fullmatch(cell):
        return float(cell)
    where = f"column {header[at].strip()!r}" if header else f"column {at}"
    comma = "," in cell and _NUMBER.fullmatch(cell.replace(",", "."))
    raise InputError(
        f"{describe_path(word.path)}, line {line}, {where}, holds {cell[:40]!r}, which is no number.",
        "Write decimals with a point." if comma else _COLUMNS.format(word.path),
    )
