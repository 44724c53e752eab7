"""A table on a terminal: columns go in a fixed order until the rest fit, and names are never cut.

A name that is wider than its column gets lines of its own, and the row's values the line below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from hookscope.views.text.table import Cell, Column, Row, Table
from hookscope.views.text.text import fold, visible, wrap

GAP = "  "
NAME_SHARE = 0.4  # of the width that names may claim before other columns go
INLINE_NOTE = 18  # notes up to this wide are made room for beside the columns
NOTE = -1  # stands for the notes where columns go by their index
NARROWEST = 12  # cells that must be left beside the guides, else the guides go


def terminal_lines(table: Table, width: int, ascii: bool) -> list[Text]:
    """Return the lines of ``table``, none wider than ``width`` cells."""
    fitted = _fit(table, width, ascii)
    return [_header(fitted), *(line for row in table.rows for line in _row_lines(row, fitted))]


def put(line: Text, text: str, width: int, right: bool, style: str) -> None:
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
    indexes = [i for i, texts in enumerate(_kinds(table)) if i == 0 or texts != {""}]
    shortened = set[int]()
    beside = _note_room(table, ascii)
    claimed = min(wide[0], max(int(width * NAME_SHARE), 12))

    def taken() -> int:
        return sum(wide[i] + len(GAP) for i in indexes[1:])

    for action, i in _steps(table):
        if claimed + taken() + beside <= width:
            break
        if i == NOTE:
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


def _kinds(table: Table) -> list[set[str]]:
    """The different texts of each column."""
    return [{row.cells[i].text for row in table.rows} for i in range(len(table.columns))]


def _steps(table: Table) -> Iterator[tuple[str, int]]:
    """What to give up, in order: dull columns, then as the table lists, then from the right."""
    index = {column.title: i for i, column in enumerate(table.columns)} | {table.note: NOTE}
    for i, texts in enumerate(_kinds(table)):
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
        put(line, title, width, right, "bold")
    line.rstrip()
    line.truncate(fitted.width)
    return line


def _row_lines(row: Row, fitted: _Fitted) -> list[Text]:
    name = visible(row.cells[0].text, fitted.ascii)
    cells = [(row.cells[i], i) for i in fitted.indexes[1:]]
    line = Text().append(row.guide, "dim").append(name, row.cells[0].style)
    lines: list[Text] = []
    if line.cell_len > fitted.widths[0]:  # the name gets whole lines, the cells the next one
        lines = _folded(row, name, fitted.width)
        line = Text().append(row.hang, "dim")
        line.truncate(fitted.widths[0])
    line.append(" " * (fitted.widths[0] - line.cell_len))
    while row.gone and cells and not fitted.text(*cells[-1]):
        cells.pop()
    for (cell, i), width, right in zip(cells, fitted.widths[1:], fitted.right[1:], strict=False):
        put(line, fitted.text(cell, i), width, right, cell.style)
    if not lines or any(fitted.text(*cell) for cell in cells):
        lines.append(line)
    _add_note(lines, row, fitted)
    for line in lines:
        line.rstrip()
    return lines


def _folded(row: Row, name: str, width: int) -> list[Text]:
    """A name wider than its column, on as many lines as it takes."""
    guide, hang = row.guide, row.hang
    drawn = max(cell_len(guide), cell_len(hang))
    if width - drawn < NARROWEST:
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
    hang = row.hang if fitted.width - cell_len(row.hang) >= NARROWEST else ""
    for piece in wrap(note, fitted.width - cell_len(hang) - len(GAP), ""):
        lines.append(Text().append(hang, "dim").append(GAP).append(piece, row.note.style))
