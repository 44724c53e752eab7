"""CSV files of numbers: each row is a sample, each column a feature."""

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
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import list_first
from hookscope.inputs.input_reader import ReadContext, describe_path, read_bytes, sha256
from hookscope.specs.input_spec import InputSpec

_DELIMITERS = (";", "\t", "|", ",")  # the comma is last: it may be a decimal comma
# Matches each digit in one way only. With backtracking, a long cell would take minutes.
_NUMBER = re.compile(r"\s*[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|nan|inf)\s*", re.I)
_RANGE = re.compile(r"(?P<first>\d{1,9})(-(?P<last>\d{1,9}))?")
_COLUMNS = "Select columns by name or by number, from 0: --input {0}:0-3"
_MAX_BYTES = 64 << 20
_MAX_NAMES = 20  # names of columns in an error

Row = tuple[int, list[str]]  # the number of its line, its cells


def read_csv(context: ReadContext, spec: InputSpec) -> tuple[Tensor, str]:
    """Return the numbers of a table, float32 (rows, columns)."""
    # The first row is a header if none of its cells is a number.
    data = read_bytes(spec.path, _MAX_BYTES, "Save the numbers with numpy.save.")
    try:
        numbers = _numbers(data.decode("utf-8-sig"), spec)
    except (UnicodeDecodeError, csv.Error) as exc:
        reason = exc if isinstance(exc, csv.Error) else "it is not UTF-8"
        raise InputError(
            f"{describe_path(spec.path)} is not a valid table: {reason}.", WRITE_AGAIN
        ) from exc
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        return torch.from_numpy(numbers.astype(np.float32)), sha256(data)


def _numbers(text: str, spec: InputSpec) -> NDArray[np.float64]:
    delimiter = _delimiter(text)
    rows = _rows(text, delimiter)
    line, first = next(rows, (0, []))
    if not first:
        raise InputError(f"{describe_path(spec.path)} contains no rows.", WRITE_AGAIN)
    header = [] if any(_NUMBER.fullmatch(cell) for cell in first) else first
    columns = _columns(spec, [cell.strip() for cell in header], len(first))
    if not header:
        rows = chain([(line, first)], rows)
    second = next(rows, None)
    if second is None:
        raise InputError(
            f"{describe_path(spec.path)} contains no rows of numbers.",
            f"Its only row is {', '.join(header)[:60]!r}.",
        )
    try:  # numpy's reader is several times faster, but its errors have no position
        numbers = np.loadtxt(
            io.StringIO(text),
            delimiter=delimiter,
            comments=None,
            quotechar='"',
            skiprows=line if header else 0,
            ndmin=2,
        )
        if numbers.shape[1] == len(first):
            return numbers[:, columns]
    except ValueError:
        pass
    # float() also takes 1_0 and infinity.
    plain = "_" not in text and "infinity" not in text.lower()
    return _row_by_row(chain([second], rows), (line, first), header, columns, spec, plain)


def _row_by_row(
    body: Iterable[Row],
    top: Row,
    header: list[str],
    columns: list[int],
    spec: InputSpec,
    plain: bool,
) -> NDArray[np.float64]:
    """The numbers of all rows."""
    values = array("d")
    first_line, width = top[0], len(top[1])
    whole = columns == list(range(width))
    for line, row in body:
        if len(row) != width:
            raise InputError(
                f"{describe_path(spec.path)}, line {line}, has {len(row)} cells, but line"
                f" {first_line} has {width}.",
                "All rows must have the same number. Separators are comma, semicolon, tab or |.",
            )
        try:
            if plain:
                cells = row if whole else [row[column] for column in columns]
                values.extend([float(cell) for cell in cells])
                continue
        except ValueError:
            pass
        values.extend([_number(row, column, line, header, spec) for column in columns])
    return np.array(values).reshape(-1, len(columns))


def _delimiter(text: str) -> str:
    lines = [line for line in islice(io.StringIO(text), 100) if line.strip()]
    counts = {mark: {line.count(mark) for line in lines} for mark in _DELIMITERS}
    even = [mark for mark in _DELIMITERS if len(counts[mark]) == 1 and 0 not in counts[mark]]
    some = [mark for mark in _DELIMITERS if counts[mark] - {0}]
    return next(iter(even or some), ",")


def _rows(text: str, delimiter: str) -> Iterator[Row]:
    """The rows that are not empty."""
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    for row in reader:
        if "".join(row).strip():
            yield reader.line_num, row


def _columns(spec: InputSpec, header: list[str], count: int) -> list[int]:
    """The columns that a spec names after the file, or all columns."""
    if not spec.rest:
        return list(range(count))
    columns: list[int] = []
    for name in (part.strip() for part in spec.rest.split(",")):
        span = _RANGE.fullmatch(name)
        if name in header:
            columns.append(header.index(name))
        elif span and int(span["last"] or span["first"]) < count:
            columns += range(int(span["first"]), int(span["last"] or span["first"]) + 1)
        else:
            names = list_first(header, _MAX_NAMES) or f"columns 0 to {count - 1}, without names"
            raise InputError(
                f"There is no column {name!r} in {spec.path!r}.",
                f"{did_you_mean(name, header)} It has {names}.".strip(),
            )
    if not columns:
        raise InputError(f"{spec.text!r} selects no columns.", _COLUMNS.format(spec.path))
    return columns


def _number(row: list[str], index: int, line: int, header: list[str], spec: InputSpec) -> float:
    cell = row[index]
    if _NUMBER.fullmatch(cell):
        return float(cell)
    column = f"column {header[index].strip()!r}" if header else f"column {index}"
    comma = "," in cell and _NUMBER.fullmatch(cell.replace(",", "."))
    raise InputError(
        f"{describe_path(spec.path)}, line {line}, {column}: {cell[:40]!r} is not a number.",
        "Use a decimal point." if comma else _COLUMNS.format(spec.path),
    )
