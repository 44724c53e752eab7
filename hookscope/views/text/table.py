"""Tables as data: columns, rows and cells, from which text, CSV and HTML are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Cell:
    """One cell: ``text`` on a terminal, ``short`` on a narrow one, ``full`` in a pipe.

    A cell with a ``value`` is sorted by it, and a pipe gets the value unless there is a ``full``.
    If the cell is ``rounded``, its text is the value alone, and ``--precision`` applies to it.
    """

    text: str = ""
    short: str | None = None
    full: str | None = None
    style: str = ""
    value: float | int | None = None
    rounded: bool = False


@dataclass(frozen=True)
class Column:
    """A column: its title, also in short, and its alignment.

    An ``optional`` column is dropped first on a narrow terminal if all its cells are equal.
    """

    title: str
    short: str | None = None
    right: bool = False
    optional: bool = False


NOTE = Column("note")


@dataclass(frozen=True)
class Row:
    """Cells in the order of the columns, the name first, and a note that is printed at any width.

    A ``missing`` row has no values: on a terminal its note takes the place of the empty cells.
    ``guide`` is drawn before the name on a terminal, ``continuation`` before further lines of the
    row.
    """

    cells: tuple[Cell, ...]
    note: Cell = field(default_factory=Cell)
    guide: str = ""
    continuation: str = ""
    missing: bool = False


@dataclass(frozen=True)
class Table:
    """Columns, rows, and the steps that make the table narrower, by the titles of columns.

    ``note`` is the title of the notes, which are the last column in a pipe; empty for a table
    without notes. If notes are dropped on a terminal, they are printed below their rows.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    squeeze: tuple[Squeeze, ...] = ()
    note: str = NOTE.title

    @property
    def pipe_columns(self) -> tuple[Column, ...]:
        """The columns in a pipe: the notes are the last."""
        return (*self.columns, Column(self.note)) if self.note else self.columns

    def pipe_cells(self, row: Row) -> tuple[Cell, ...]:
        """Return the cells of a row in a pipe: the note is the last."""
        return (*row.cells, row.note) if self.note else row.cells


Squeeze = tuple[Literal["drop", "shorten"], str]
