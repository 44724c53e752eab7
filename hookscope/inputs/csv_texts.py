"""Texts in a column of a CSV file: a row is read from its place in the file when it is used."""

from __future__ import annotations

import csv
import hashlib
import io
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hookscope.errors import InputError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.text_sources import TextSource
from hookscope.inputs.text_columns import TextRow, stored_columns, stored_values, text_column

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
