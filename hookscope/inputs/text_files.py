"""Texts in files: the lines of a file, and a column of a CSV file, read when they are used."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hookscope.errors import InputError, cause
from hookscope.escapes import encodable
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.text_sources import DEFAULT_COLUMN, TextSource
from hookscope.inputs.text_columns import (
    TextRow,
    columns_hint,
    stored_columns,
    stored_values,
    text_column,
    type_name,
)
from hookscope.specs.model_spec import end_sentence

_MAX_FIELD = 1 << 27  # characters of a field


class CsvTexts:
    """A column of a CSV file; the delimiter is a tab if the header has one, else , ; or |."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._starts = array("q")  # bytes, of each row
        self._end = 0
        with open(source.path, "rb") as file:
            self.digest = hashlib.file_digest(file, "sha256").hexdigest()
        with self._errors(), open(source.path, encoding="utf-8", newline="") as text:
            header = text.readline()
            self._delimiter = "\t" if "\t" in header else max(",;|", key=header.count)
            text.seek(0)
            self._find_rows(self._reader(self._counted(text)))
        self._column = text_column(source, self._names)
        others = [name for name in self._names if name != self._column]
        self.columns, self.left_out = stored_columns(source, others)

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, index: int) -> str:
        """Return the file and the number of the row, without the header."""
        return f"{self._source.path}:{index + 1}"

    def read(self, index: int) -> TextRow:
        """Return the text of a row, and its other values, which are texts too."""
        start = self._starts[index]
        stop = self._starts[index + 1] if index + 1 < len(self) else self._end
        with open(self._source.path, "rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        with self._errors():
            row: list[str] = next(self._reader(io.StringIO(data.decode(), newline="")), [])
        where = f"Row {index + 1} of {self._source.path!r}"
        if len(row) != len(self._names):
            raise InputError(f"{where} has changed during the run.", "Run the command again.")
        values = dict(zip(self._names, row, strict=True))
        return TextRow(values[self._column], where, stored_values(values, self.columns))

    def _find_rows(self, rows: Any) -> None:
        self._names = [name.strip() for name in next(rows, [])]
        start = self._end
        try:
            for row in rows:
                if row:  # not an empty line
                    self._starts.append(start)
                    self._check_width(row, rows.line_num)
                start = self._end
        except csv.Error as error:
            raise csv.Error(f"{error} (line {rows.line_num})") from error

    def _check_width(self, row: list[str], line: int) -> None:
        if len(row) != len(self._names):
            raise InputError(
                f"Line {line} of {self._source.path!r} has {len(row)} fields, but the header has"
                f" {len(self._names)}.",
                "Put texts that contain the separator in double quotes.",
            )

    def _counted(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines, without a byte order mark, and add up their bytes."""
        for line in lines:
            first = not self._end
            self._end += len(line.encode())
            yield line.removeprefix("\ufeff") if first else line

    def _reader(self, lines: Iterable[str]) -> Any:
        return csv.reader(lines, delimiter=self._delimiter, strict=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of decoding and of ``csv`` in the block into InputError."""
        limit = csv.field_size_limit(_MAX_FIELD)
        try:
            yield
        except UnicodeDecodeError as error:
            raise InputError(f"{self._source.path!r} is not UTF-8 text.", WRITE_AGAIN) from error
        except csv.Error as error:
            raise InputError(
                f"{self._source.path!r} is not a valid table: {error}.", WRITE_AGAIN
            ) from error
        finally:
            csv.field_size_limit(limit)


class LineTexts:
    """Lines of a file as texts. Empty lines at its end are ignored."""

    columns: tuple[str, ...] = ()
    left_out = ""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._starts = array("q", [0])
        digest, last = hashlib.sha256(), 0
        with open(source.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                self._starts.append(self._starts[-1] + len(line))
                last = number if line.strip() else last
                self._note(line, number)
        del self._starts[last + 1 :]
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def name(self, index: int) -> str:
        """Return the file and the number of the line."""
        return f"{self._source.path}:{index + 1}"

    def read(self, index: int) -> TextRow:
        """Return the text of a line."""
        return TextRow(self._line(index), self._where(index), {})

    def _note(self, line: bytes, number: int) -> None:
        """Called with each line when the file is opened."""

    def _where(self, index: int) -> str:
        return f"Line {index + 1} of {self._source.path!r}"

    def _line(self, index: int) -> str:
        start, stop = self._starts[index : index + 2]
        with open(self._source.path, "rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        try:
            return _decoded(data, index + 1)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._where(index)} is not UTF-8 text: byte {error.start} of it is not valid.",
                WRITE_AGAIN,
            ) from error


class JsonTexts(LineTexts):
    """A field of each line of a file of JSON; or each line, if it is a string.

    All lines are parsed when the file is opened, one at a time, to find the columns.
    """

    def __init__(self, source: TextSource) -> None:
        self._column = source.column or DEFAULT_COLUMN
        self._names: dict[str, None] = {}  # of fields with a plain value, in order
        self._nested: dict[str, None] = {}
        self._fields: dict[str, None] = {}  # of all lines, in order
        self._has_texts = False
        super().__init__(source)
        if self._fields and not self._has_texts:
            raise InputError(
                f"No line of {source.path!r} has a field {self._column!r}.",
                columns_hint(source, list(self._fields)),
            )
        for names in (self._names, self._nested):
            names.pop(self._column, None)
        self.columns, self.left_out = stored_columns(source, self._names, self._nested)

    def read(self, index: int) -> TextRow:
        """Return the text of a line, and its other fields."""
        line, where = self._line(index), self._where(index)
        if not line.strip():
            return TextRow(line, where, {})
        try:
            value = json.loads(line, object_pairs_hook=_Object)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else cause(error)
            raise InputError(f"{where} is not valid JSON: {end_sentence(reason)}") from error
        if isinstance(value, str) and self._source.column is None:
            return TextRow(value, where, {})
        if not isinstance(value, _Object):
            raise InputError(
                f"{where} is {type_name(value)}, not an object with the field {self._column!r}."
            )
        if value.twice is not None:
            raise InputError(f"{where} has the field {value.twice!r} twice.", "Rename one of them.")
        if self._column not in value:
            raise InputError(
                f"{where} has no field {self._column!r}.", columns_hint(self._source, list(value))
            )
        subject = f"The field {self._column!r} in {where[0].lower()}{where[1:]}"
        return TextRow(value[self._column], subject, stored_values(value, self.columns))

    def _note(self, line: bytes, number: int) -> None:
        """Note the fields of a line. What is wrong with it is reported when it is read."""
        try:
            value = json.loads(_decoded(line, number), object_pairs_hook=_Object)
        except (ValueError, RecursionError):
            return
        if not isinstance(value, dict):
            self._has_texts |= isinstance(value, str) and self._source.column is None
            return
        self._fields |= dict.fromkeys(value)
        self._has_texts |= self._column in value
        for name, field in value.items():
            if isinstance(field, dict | list):
                self._nested[name] = None
            elif field is not None:
                self._names[name] = None


class _Object(dict[str, Any]):
    """An object of JSON; ``twice`` is a field that it has several times, or None."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        names = [encodable(name) for name, _ in pairs]
        super().__init__(zip(names, (value for _, value in pairs), strict=True))
        short = len(self) < len(names)
        self.twice = next(n for n in names if names.count(n) > 1) if short else None


def _decoded(line: bytes, number: int) -> str:
    """The text of a line without its end; the first one may begin with a byte order mark."""
    return line.decode("utf-8" if number > 1 else "utf-8-sig").rstrip("\r\n")
