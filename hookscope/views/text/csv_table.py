"""Tables as CSV: every column, no sentences."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hookscope.files.words import FULL_DIGITS, full_text, visible

if TYPE_CHECKING:
    from hookscope.views.text.table import Cell, Table


@dataclass
class CollectedTables:
    """The tables of a result, which are collected instead of laid out."""

    main: list[Table] = field(default_factory=list)
    others: list[Table] = field(default_factory=list)

    def take(self) -> Table | None:
        """Return the first table of the result, and forget all; None if there is none."""
        found = [*self.main, *self.others]
        self.main.clear()
        self.others.clear()
        return found[0] if found else None


def csv_text(table: Table, precision: int | None = None, *, header: bool = True) -> str:
    """Return a table as CSV.

    Example:
        >>> from hookscope.views.text.text_table import Cell, Column, Row, Table
        >>> row = Row((Cell("a, b"), Cell(value=0.25)))
        >>> print(csv_text(Table((Column("layer"), Column("mean")), (row,), note="")), end="")
        layer,mean
        "a, b",0.25
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(column.title for column in table.pipe_columns)
    for row in table.rows:
        writer.writerow(_csv_cell(cell, precision) for cell in table.pipe_cells(row))
    return text.getvalue()


def _csv_cell(cell: Cell, precision: int | None) -> str:
    if cell.full is None and cell.value is not None:
        return full_text(cell.value, precision or FULL_DIGITS)
    return visible(cell.text if cell.full is None else cell.full).strip()  # of its indentation
