"""The one table value: every table is built as this, and lowered to a terminal or a pipe after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len
from rich.text import Text

from hookscope.views.text.formats import fold, visible, wrap


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


MAX_PADDED_WIDTH = (
    100  # a cell wider than this pushes its own line aside, and not all the others too
)


def table_lines(table: Table, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the table's lines for a terminal of ``width`` cells, or for a pipe (None).

    Args:
        table: what to show; all its texts are taken literally, never as markup.
        width: cells of the terminal, None for a stream that is no terminal.
        ascii: write everything outside ASCII as an escape.
    """
    if width is None:
        return _pipe_lines(table, ascii)
    return terminal_lines(table, width, ascii)


def sentence(text: str, width: int | None, ascii: bool = False, style: str = "") -> list[Text]:
    """Return a sentence as lines: wrapped for a terminal of ``width`` cells, one line in a pipe."""
    shown = visible(text, ascii)
    return [Text(line, style) for line in ([shown] if width is None else wrap(shown, width))]


def join_blocks(*parts: list[Text], width: int | None) -> list[Text]:
    """Return the parts in one list; on a terminal with an empty line between them."""
    lines: list[Text] = []
    for part in filter(None, parts):
        lines += [Text(), *part] if lines and width is not None else part
    return lines


def _pipe_lines(table: Table, ascii: bool) -> list[Text]:
    """All columns, aligned, ``-`` for what is empty, the note as the last column."""
    noted = bool(table.note)
    grid = [
        [(title, "bold") for title in (*(c.title for c in table.columns), *[table.note] * noted)]
    ]
    for row in table.rows:
        cells = (*row.cells, *[row.note] * noted)
        grid.append([(_pipe_text(cell, ascii), cell.style) for cell in cells])
    widths = [
        min(max(cell_len(line[i][0]) for line in grid), MAX_PADDED_WIDTH)
        for i in range(len(grid[0]))
    ]
    right = (*(column.right for column in table.columns), *[False] * noted)
    lines = []
    for entries in grid:
        line = Text()
        for (text, style), width, on_right in zip(entries, widths, right, strict=True):
            append_cell(line, text, width, on_right, style)
        line.rstrip()
        lines.append(line)
    return lines


def _pipe_text(cell: Cell, ascii: bool) -> str:
    return visible(cell.text if cell.full is None else cell.full, ascii) or "-"


GAP = "  "

NAME_SHARE = 0.4  # of the width that names may claim before other columns go

INLINE_NOTE = 18  # notes up to this wide are made room for beside the columns

NOTE_INDEX = -1  # stands for the notes where columns go by their index

MIN_TEXT_WIDTH = 12  # cells that must be left beside the guides, else the guides go


def terminal_lines(table: Table, width: int, ascii: bool) -> list[Text]:
    """Return the lines of ``table``, none wider than ``width`` cells."""
    fitted = _fit(table, width, ascii)
    return [_header(fitted), *(line for row in table.rows for line in _row_lines(row, fitted))]


def append_cell(line: Text, text: str, width: int, right: bool, style: str) -> None:
    """Append a cell, padded to ``width``, with a gap before it unless it is the first."""
    if line:
        line.append(GAP)
    pad = " " * (width - cell_len(text))
    if right:
        line.append(pad)
    line.append(text, style)
    if not right:
        line.append(pad)


@dataclass(frozen=True)
class _Fitted:
    """Which columns of a table a terminal has room for, and how wide each becomes."""

    titles: tuple[str, ...]
    indexes: tuple[int, ...]
    shortened: frozenset[int]
    widths: tuple[int, ...]
    right: tuple[bool, ...]
    width: int
    ascii: bool

    def text(self, cell: Cell, index: int) -> str:
        short = cell.short if index in self.shortened else None
        return visible(cell.text if short is None else short, self.ascii)


def _fit(table: Table, width: int, ascii: bool) -> _Fitted:
    wide = [_column_width(table, i, False, ascii) for i in range(len(table.columns))]
    indexes = [i for i, texts in enumerate(_distinct_texts(table)) if i == 0 or texts != {""}]
    shortened = set[int]()
    beside = _note_room(table, ascii)
    claimed = min(wide[0], max(int(width * NAME_SHARE), 12))

    def taken() -> int:
        return sum(wide[i] + len(GAP) for i in indexes[1:])

    for action, i in _squeeze_steps(table):
        if claimed + taken() + beside <= width:
            break
        if i == NOTE_INDEX:
            beside = 0
        elif action == "shorten" and i in indexes:
            shortened.add(i)
            wide[i] = _column_width(table, i, True, ascii)
        elif i in indexes:
            indexes.remove(i)
    wide[0] = max(min(wide[0], width - taken()), 1)
    return _Fitted(
        titles=tuple(_title(table.columns[i], i in shortened) for i in indexes),
        indexes=tuple(indexes),
        shortened=frozenset(shortened),
        widths=tuple(wide[i] for i in indexes),
        right=tuple(table.columns[i].right for i in indexes),
        width=width,
        ascii=ascii,
    )


def _note_room(table: Table, ascii: bool) -> int:
    """Cells to keep free beside the columns; notes that need more go under their rows."""
    notes = [visible(row.note.text, ascii) for row in table.rows if not row.gone]
    widths = [cell_len(note) + len(GAP) for note in notes if note]
    return max((width for width in widths if width <= INLINE_NOTE), default=0)


def _distinct_texts(table: Table) -> list[set[str]]:
    """The different texts of each column."""
    return [{row.cells[i].text for row in table.rows} for i in range(len(table.columns))]


def _squeeze_steps(table: Table) -> Iterator[tuple[str, int]]:
    """What to give up, in order: dull columns, then as the table lists, then from the right."""
    index = {column.title: i for i, column in enumerate(table.columns)} | {table.note: NOTE_INDEX}
    for i, texts in enumerate(_distinct_texts(table)):
        if table.columns[i].dull and len(texts - {""}) <= 1:
            yield "drop", i
    for action, title in table.squeeze:
        if title in index:
            yield action, index[title]
    for i in range(len(table.columns) - 1, 0, -1):
        yield "drop", i


def _title(column: Column, short: bool) -> str:
    return column.short if short and column.short is not None else column.title


def _column_width(table: Table, i: int, short: bool, ascii: bool) -> int:
    widest = cell_len(_title(table.columns[i], short))
    for row in table.rows:
        cell = row.cells[i]
        text = cell.short if short and cell.short is not None else cell.text
        guide = cell_len(row.guide) if i == 0 else 0
        widest = max(widest, guide + cell_len(visible(text, ascii)))
    return widest


def _header(fitted: _Fitted) -> Text:
    line = Text()
    for title, width, right in zip(fitted.titles, fitted.widths, fitted.right, strict=True):
        append_cell(line, title, width, right, "bold")
    line.rstrip()
    line.truncate(fitted.width)
    return line


def _row_lines(row: Row, fitted: _Fitted) -> list[Text]:
    name = visible(row.cells[0].text, fitted.ascii)
    cells = [(row.cells[i], i) for i in fitted.indexes[1:]]
    line = Text().append(row.guide, "dim").append(name, row.cells[0].style)
    lines: list[Text] = []
    if line.cell_len > fitted.widths[0]:  # the name gets whole lines, the cells the next one
        lines = _folded_name(row, name, fitted.width)
        line = Text().append(row.hang, "dim")
        line.truncate(fitted.widths[0])
    line.append(" " * (fitted.widths[0] - line.cell_len))
    while row.gone and cells and not fitted.text(*cells[-1]):
        cells.pop()
    for (cell, i), width, right in zip(cells, fitted.widths[1:], fitted.right[1:], strict=False):
        append_cell(line, fitted.text(cell, i), width, right, cell.style)
    if not lines or any(fitted.text(*cell) for cell in cells):
        lines.append(line)
    _add_note(lines, row, fitted)
    for line in lines:
        line.rstrip()
    return lines


def _folded_name(row: Row, name: str, width: int) -> list[Text]:
    """A name wider than its column, on as many lines as it takes."""
    guide, hang = row.guide, row.hang
    drawn = max(cell_len(guide), cell_len(hang))
    if width - drawn < MIN_TEXT_WIDTH:
        guide, hang, drawn = "", "", 0
    return [
        Text().append(hang if n else guide, "dim").append(piece, row.cells[0].style)
        for n, piece in enumerate(fold(name, width - drawn))
    ]


def _add_note(lines: list[Text], row: Row, fitted: _Fitted) -> None:
    """Put the note beside the columns where there is room, else under the row."""
    note = visible(row.note.text, fitted.ascii)
    if not note:
        return
    if lines[-1].cell_len + len(GAP) + cell_len(note) <= fitted.width:
        lines[-1].append(GAP).append(note, row.note.style)
        return
    hang = row.hang if fitted.width - cell_len(row.hang) >= MIN_TEXT_WIDTH else ""
    for piece in wrap(note, fitted.width - cell_len(hang) - len(GAP), ""):
        lines.append(Text().append(hang, "dim").append(GAP).append(piece, row.note.style))
