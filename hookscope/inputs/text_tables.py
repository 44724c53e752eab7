"""The texts of a dataset: the lines of files, and a column of tables, with their other columns.

Lines, and rows of CSV files, are read from their place in the file when they are used. Of a Parquet
file a row group is in memory. A folder of the package ``datasets`` is mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hookscope.errors import InputError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.text_sources import CSV, DATASET, JSON_LINES, LINES, PARQUET, TextSource
from hookscope.inputs.arrow_texts import DatasetTexts, ParquetTexts
from hookscope.inputs.csv_texts import CsvTexts
from hookscope.inputs.line_texts import JsonTexts, LineTexts
from hookscope.inputs.text_columns import TextRow


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
