"""Texts in a column of a Parquet file, or of a folder of the package ``datasets``."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from hookscope.errors import InputError, cause
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.optional_packages import optional_package
from hookscope.files.text_sources import TextSource
from hookscope.inputs.text_columns import TextRow, stored_columns, stored_values, text_column
from hookscope.specs.model_spec import end_sentence

# The types of Arrow whose values are texts or numbers, as Arrow writes them.
_PLAIN = {"string", "large_string", "string_view", "bool", "halffloat", "float", "double"}
_PLAIN |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


class _ArrowTexts:
    """A column of a table whose columns have types of Arrow."""

    def __init__(self, source: TextSource, schema: Any) -> None:
        self._source = source
        self._column = text_column(source, schema.names)
        others = [name for name in schema.names if name != self._column]
        nested = [name for name in others if not _is_plain(schema.field(name).type)]
        self.columns, self.left_out = stored_columns(source, others, nested)

    def name(self, index: int) -> str:
        """Return the table and the number of the row."""
        return f"{self._source.path}:{index + 1}"

    def read(self, index: int) -> TextRow:
        """Return the text of a row, and its other values."""
        where = f"Row {index + 1} of {self._source.path!r}"
        values = self._values(index)
        return TextRow(values[self._column], where, stored_values(values, self.columns))

    def _values(self, index: int) -> Mapping[str, Any]:
        raise NotImplementedError


class ParquetTexts(_ArrowTexts):
    """A column of a Parquet file. One row group at a time is in memory."""

    def __init__(self, source: TextSource) -> None:
        with optional_package("pyarrow", "parquet", "Reading Parquet"):
            from pyarrow import parquet
        self._open = parquet.ParquetFile
        with open(source.path, "rb") as file:
            self.digest = hashlib.file_digest(file, "sha256").hexdigest()
        with _arrow_errors(source), self._open(source.path) as table:
            groups = range(table.num_row_groups)
            counts = [table.metadata.row_group(group).num_rows for group in groups]
            schema = table.schema_arrow
        super().__init__(source, schema)
        self._ends = list(accumulate(counts))
        self._in_memory: tuple[int, Any] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _values(self, index: int) -> Mapping[str, Any]:
        number = bisect_right(self._ends, index)
        group = self._group(number)
        row = index - (self._ends[number - 1] if number else 0)
        names = (self._column, *self.columns)
        return {name: group.column(name)[row].as_py() for name in names}

    def _group(self, number: int) -> Any:
        if self._in_memory is None or self._in_memory[0] != number:
            self._in_memory = None  # so that only one is in memory
            names = [self._column, *self.columns]
            with _arrow_errors(self._source), self._open(self._source.path) as table:
                self._in_memory = number, table.read_row_group(number, columns=names)
        return self._in_memory[1]


class DatasetTexts(_ArrowTexts):
    """A column of a folder of the package ``datasets``, which maps it into memory."""

    def __init__(self, source: TextSource) -> None:
        with optional_package("datasets", "datasets", repr(source.path)):
            import datasets
        try:
            table = datasets.load_from_disk(source.path)
        except Exception as error:  # its readers raise nearly any type
            raise InputError(
                f"{source.path!r} cannot be read as a dataset: {end_sentence(cause(error))}",
                WRITE_AGAIN,
            ) from error
        super().__init__(source, table.features.arrow_schema)
        self.digest = f"{table._fingerprint}:{len(table)}"
        plain = table.with_format(None)  # the folder may name another, such as torch
        self._table = plain.select_columns([self._column, *self.columns])
        self._classes: dict[str, Sequence[str]] = {
            name: feature.names
            for name, feature in self._table.features.items()
            if isinstance(feature, datasets.ClassLabel)
        }

    def __len__(self) -> int:
        return len(self._table)

    def _values(self, index: int) -> Mapping[str, Any]:
        row: dict[str, Any] = self._table[index]
        return {
            name: _class_name(self._classes[name], value) if name in self._classes else value
            for name, value in row.items()
        }


def _class_name(names: Sequence[str], number: int | None) -> str | None:
    """The name of a class; None without one, which datasets also mark by -1."""
    return names[number] if number is not None and 0 <= number < len(names) else None


def _is_plain(kind: Any) -> bool:
    """Whether the values of a type of Arrow are texts or numbers, such as those of categories."""
    import pyarrow

    if isinstance(kind, pyarrow.DictionaryType):
        kind = kind.value_type
    return str(kind) in _PLAIN


@contextmanager
def _arrow_errors(source: TextSource) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        raise InputError(
            f"{source.path!r} cannot be read as Parquet: {end_sentence(cause(error))}", WRITE_AGAIN
        ) from error
