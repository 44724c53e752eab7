"""The one table value: every table is built as this, and lowered to a terminal or a pipe after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Cell:
    """One entry: ``text`` on a terminal, ``short`` where that is too wide, ``full`` in a pipe."""

    text: str = ""
    short: str | None = None
    full: str | None = None
    style: str = ""


@dataclass(frozen=True)
class Column:
    """A column's titles and side. A ``dull`` one is the first to go if all its cells are equal."""

    title: str
    short: str | None = None
    right: bool = False
    dull: bool = False


@dataclass(frozen=True)
class Row:
    """Cells in the order of the columns, the name first, and a note that no width drops.

    ``gone`` rows have no values, so on a terminal the note stands in place of their empty cells.
    ``guide`` is drawn before the name on a terminal, ``hang`` before whatever continues the row.
    """

    cells: tuple[Cell, ...]
    note: Cell = field(default_factory=Cell)
    guide: str = ""
    hang: str = ""
    gone: bool = False


Squeeze = tuple[Literal["drop", "shorten"], str]


@dataclass(frozen=True)
class Table:
    """Columns, rows, and the order in which columns (by title) yield when there is little room.

    ``note`` titles the notes in a pipe, where they are the last column; empty where there are none.
    To drop the notes on a terminal is to write them under their rows.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    squeeze: tuple[Squeeze, ...] = ()
    note: str = "note"
