"""The texts of a dataset: the lines of files, and a column of tables, with their other columns.

Lines, and rows of CSV files, are read from their place in the file when they are used. Of a Parquet
file a row group is in memory. A folder of the package ``datasets`` is mapped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from hashlib import sha256 as sha256_of
from typing import Protocol

from hookscope.errors import EnvironmentFault, InputError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.text_sources import (
    CSV,
    DATASET,
    JSON_LINES,
    LINES,
    PARQUET,
    TextSource,
    text_sources,
)
from hookscope.inputs.arrow_texts import DatasetTexts, ParquetTexts
from hookscope.inputs.text_columns import TextRow
from hookscope.inputs.text_files import CsvTexts, JsonTexts, LineTexts

_SHOWN = 3  # names in a note
_MOVED = "texts are not at their path any more (moved or deleted)"
_CHANGED = "texts have changed since the features were extracted"
_SINGLE = {
    _MOVED: "text is not at its path any more (moved or deleted)",
    _CHANGED: "text has changed since the features were extracted",
}


class TextTable(Protocol):
    """The texts of one file or folder.

    Attributes:
        digest: SHA-256 of the content, or another text that changes with it.
        columns: names of the columns that are stored beside the texts.
        left_out: a note about other columns; empty if there are none.
    """

    digest: str
    columns: tuple[str, ...]
    left_out: str

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return the name of a text: the file and the number of the line or row, from 1."""

    def read(self, index: int) -> TextRow:
        """Return a text and the values of the other columns.

        Raises:
            InputError: the line or row cannot be read; the message has its number.
        """


_OPENERS: dict[str, Callable[[TextSource], TextTable]] = {
    LINES: LineTexts,
    JSON_LINES: JsonTexts,
    CSV: CsvTexts,
    PARQUET: ParquetTexts,
    DATASET: DatasetTexts,
}


def open_texts(source: TextSource) -> TextTable:
    """Open a source of texts."""
    try:
        table = _OPENERS[source.kind](source)
    except OSError as error:
        raise InputError(f"{source.path!r} cannot be read: {error.strerror or error}.") from error
    if not len(table):
        raise InputError(f"{source.path!r} contains no texts.", WRITE_AGAIN)
    return table


class StoredTexts:
    """Reads single texts by their names in the table of inputs, such as ``reviews.jsonl:3``."""

    def __init__(self, specs: Sequence[str]) -> None:
        self._specs = specs
        self._tables: dict[str, list[TextTable]] = {}
        self._missing: dict[str, dict[str, None]] = {}  # by the reason, names in order
        self._errors: dict[str, None] = {}  # of files that are there and cannot be read

    def read(self, name: str, sha256: str | None) -> str | None:
        """Return a text; None if it is not there any more, or has changed."""
        path, _, number = name.rpartition(":")
        if path not in self._tables:
            self._tables[path] = self._open(path)
        for table in self._tables[path]:  # one for each column of the file that was extracted
            try:
                text = table.read(int(number) - 1).text
            except (InputError, IndexError, OSError, ValueError):
                continue
            if sha256 in (None, sha256_of(text.encode(errors="surrogatepass")).hexdigest()):
                return text
        if self._tables[path] or not os.path.exists(path):
            self._miss(_CHANGED if self._tables[path] else _MOVED, name)
        return None

    def _open(self, path: str) -> list[TextTable]:
        tables = []
        for spec in self._specs:
            try:
                sources = [s for s in text_sources([spec]) or () if s.path == path]
                tables += [open_texts(source) for source in sources]
            except (InputError, EnvironmentFault) as error:
                if os.path.exists(path):
                    self._errors[f"{error.message} Positions are shown instead."] = None
        return tables

    def _miss(self, reason: str, name: str) -> None:
        self._missing.setdefault(reason, {})[name] = None

    def notes(self) -> list[str]:
        """Return which texts could not be read, and why, in a sentence for each reason."""
        return [*self._errors] + [
            f"{len(names)} {reason if len(names) > 1 else _SINGLE[reason]}:"
            f" {', '.join(list(names)[:_SHOWN])}{_more(len(names) - _SHOWN)}."
            " Positions are shown instead."
            for reason, names in self._missing.items()
        ]


def _more(names: int) -> str:
    return f" and {names} more" if names > 0 else ""
