"""The texts of a dataset: the lines of files, and a column of tables.

Lines are read from their place in the file when they are used. A column of a CSV or Parquet file is
in memory; one of a folder of the package ``datasets`` is mapped.
"""

from __future__ import annotations

import csv
import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hookscope.errors import EnvironmentFault, InputError, cause
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.results.pyarrow_package import require_pyarrow
from hookscope.specs.model_spec import end_sentence
from hookscope.specs.suggestions import did_you_mean
from hookscope.specs.text_sources import (
    CSV,
    DATASET,
    DEFAULT_COLUMN,
    JSON_LINES,
    LINES,
    PARQUET,
    TextSource,
)

_MAX_NAMES = 20  # names of columns in an error
_MAX_FIELD = 1 << 27  # characters of a field of a CSV file


class TextTable(Protocol):
    """The texts of one file or folder.

    Attributes:
        digest: SHA-256 of the content, or another text that changes with it.
    """

    digest: str

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return the name of a text: the file and the number of the line or row, from 1."""

    def read(self, index: int) -> str:
        """Return a text.

        Raises:
            InputError: it is empty or not a text; the message has its number.
        """


def open_texts(source: TextSource) -> TextTable:
    """Open a source of texts.

    Raises:
        InputError: the file cannot be read, is no table or has no text, or has no such column.
        EnvironmentFault: the package that reads it is not installed.
    """
    try:
        table = _OPENERS[source.kind](source)
    except OSError as error:
        raise InputError(f"{source.path!r} cannot be read: {error.strerror or error}.") from error
    if not len(table):
        raise InputError(f"{source.path!r} contains no texts.", WRITE_AGAIN)
    return table


class LineTexts:
    """Lines of a file as texts; of JSON lines a field of each.

    Empty lines at the end of the file are ignored.
    """

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._starts = array("q", [0])
        digest, last = hashlib.sha256(), 0
        with open(source.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                self._starts.append(self._starts[-1] + len(line))
                last = number if line.strip() else last
        del self._starts[last + 1 :]
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def name(self, index: int) -> str:
        """Return the file and the number of the line."""
        return f"{self._source.path}:{index + 1}"

    def read(self, index: int) -> str:
        """Return the text of a line."""
        start, stop = self._starts[index : index + 2]
        with open(self._source.path, "rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        where = f"Line {index + 1} of {self._source.path!r}"
        try:
            line = data.decode("utf-8-sig" if not index else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{where} is not UTF-8 text: byte {error.start} of it is not valid.", WRITE_AGAIN
            ) from error
        if self._source.kind == JSON_LINES and line.strip():
            return self._field(line, where)
        return _checked(line, where)

    def _field(self, line: str, where: str) -> str:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else cause(error)
            raise InputError(f"{where} is not valid JSON: {end_sentence(reason)}") from error
        if isinstance(value, str) and self._source.column is None:
            return _checked(value, where)
        column = self._source.column or DEFAULT_COLUMN
        if not isinstance(value, dict):
            raise InputError(
                f"{where} is {_type_name(value)}, not an object with the field {column!r}."
            )
        if column not in value:
            raise InputError(
                f"{where} has no field {column!r}.", _columns_hint(self._source, list(value))
            )
        return _checked(value[column], f"The field {column!r} in {where[0].lower()}{where[1:]}")


class ColumnTexts:
    """The texts of a column of a table.

    Args:
        source: the table.
        values: of the column.
        digest: changes with the content of the table.
        convert: makes a Python value of one of the values.
    """

    def __init__(
        self,
        source: TextSource,
        values: Sequence[Any],
        digest: str,
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._source, self._values, self._convert = source, values, convert
        self.digest = digest

    def __len__(self) -> int:
        return len(self._values)

    def name(self, index: int) -> str:
        """Return the table and the number of the row, without the header."""
        return f"{self._source.path}:{index + 1}"

    def read(self, index: int) -> str:
        """Return the text of a row."""
        value = self._convert(self._values[index])
        return _checked(value, f"Row {index + 1} of {self._source.path!r}")


def _open_csv(source: TextSource) -> TextTable:
    """The column of a CSV file; the delimiter is a tab if the header has one, else , ; or |."""
    with open(source.path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    limit = csv.field_size_limit(_MAX_FIELD)
    try:
        with open(source.path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            delimiter = max("\t,;|", key=first.count)
            file.seek(0)
            rows = csv.reader(file, delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(rows, [])]
            column = _choose(source, header)
            texts: list[str] = []
            for row in rows:
                if not row:  # an empty line
                    continue
                if len(row) != len(header):
                    raise InputError(
                        f"Line {rows.line_num} of {source.path!r} has {len(row)} fields, but the"
                        f" header has {len(header)}.",
                        "Put texts that contain the separator in double quotes.",
                    )
                texts.append(row[column])
    except UnicodeDecodeError as error:
        raise InputError(f"{source.path!r} is not UTF-8 text.", WRITE_AGAIN) from error
    except csv.Error as error:
        raise InputError(
            f"{source.path!r} is not a valid table: {error} (line {rows.line_num}).", WRITE_AGAIN
        ) from error
    finally:
        csv.field_size_limit(limit)
    return ColumnTexts(source, texts, digest)


def _open_parquet(source: TextSource) -> TextTable:
    with require_pyarrow("Reading"):
        import pyarrow
        from pyarrow import parquet
    with open(source.path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        with parquet.ParquetFile(source.path) as table:
            names = list(table.schema_arrow.names)
            name = names[_choose(source, names)]
            column = table.read([name]).column(name)
    except pyarrow.ArrowException as error:
        raise InputError(
            f"{source.path!r} cannot be read as Parquet: {end_sentence(cause(error))}", WRITE_AGAIN
        ) from error
    return ColumnTexts(source, column, digest, lambda value: value.as_py())


def _open_dataset(source: TextSource) -> TextTable:
    try:
        import datasets
    except ImportError as error:
        raise EnvironmentFault(
            f"{source.path!r} needs the package datasets, which cannot be imported: {error}.",
            'Install it: pip install "hookscope[datasets]"',
        ) from error
    try:
        table = datasets.load_from_disk(source.path)
    except Exception as error:  # its readers raise nearly any type
        raise InputError(
            f"{source.path!r} cannot be read as a dataset: {end_sentence(cause(error))}",
            WRITE_AGAIN,
        ) from error
    names = list(table.column_names)
    name = names[_choose(source, names)]
    digest = f"{table._fingerprint}:{len(table)}"
    return ColumnTexts(source, table.select_columns(name), digest, lambda row: row[name])


_OPENERS: dict[str, Callable[[TextSource], TextTable]] = {
    LINES: LineTexts,
    JSON_LINES: LineTexts,
    CSV: _open_csv,
    PARQUET: _open_parquet,
    DATASET: _open_dataset,
}


def _choose(source: TextSource, names: list[str]) -> int:
    """The index of the column of the texts."""
    column = source.column or DEFAULT_COLUMN
    if column in names:
        return names.index(column)
    raise InputError(f"{source.path!r} has no column {column!r}.", _columns_hint(source, names))


def _columns_hint(source: TextSource, names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    near = did_you_mean(source.column, names) if source.column else ""
    example = f"Name one: {source.path}:{names[0]}." if names and not near else ""
    return " ".join(part for part in (near, f"It has {shown or 'none'}.", example) if part)


def _checked(value: Any, subject: str) -> str:
    """Return the text of a line or field.

    Raises:
        InputError: it is not a text, or consists of spaces.
    """
    if not isinstance(value, str):
        raise InputError(f"{subject} is {_type_name(value)}, not a text.")
    if not value.strip():
        raise InputError(f"{subject} is empty.")
    return value


def _type_name(value: Any) -> str:
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)
