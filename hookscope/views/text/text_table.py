"""Tables and sentences as lines: for a terminal of some width, for a pipe, or of HTML.

Every table of every command is built as a ``Table`` first. A pipe gets every column, values to six
digits and one record a line. On a terminal columns are dropped in a fixed order until the rest fit.
Names are never cut: a name that is wider than its column is printed on lines of its own, and the
values of its row on the line below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Span, Text

from hookscope.escapes import visible
from hookscope.files.words import PIPE_DIGITS, fold, full_text, number_text, plural, wrap
from hookscope.views.text.table import (
    Cell,
    Column,
    Row,
    Table,
    html_sentence,
    html_table,
    markdown_paragraph,
    markdown_table,
    order_rows,
)

if TYPE_CHECKING:
    from hookscope.views.text.table import CollectedTables

MAX_PADDED_WIDTH = 100  # in a pipe, a wider cell moves its own line only, not all other lines
GAP = "  "
NAME_SHARE = 0.4  # of the width: room for names before other columns are dropped
INLINE_NOTE = 18  # a note up to this width keeps room beside the columns
NOTE_INDEX = -1  # the notes, where columns are numbered
MIN_TEXT_WIDTH = 12  # cells needed beside the guides; with less room, no guides are drawn


@dataclass(frozen=True)
class TextOptions:
    """How a result is printed."""

    width: int | None = None
    ascii: bool = False
    verbose: bool = False
    precision: int | None = None
    sort: str | None = None
    top: int | None = None
    html: bool = False
    markdown: bool = False
    tables: CollectedTables | None = None

    @property
    def is_page(self) -> bool:
        """Whether the text becomes part of a page, which has tables and sentences alone."""
        return self.html or self.markdown

    @property
    def lists_rows(self) -> bool:
        """Whether every value of a result is a row of its table, and none is in a map."""
        return self.width is None or (not self.is_page and (self.sort or self.top) is not None)


PIPE = TextOptions()
NOTEBOOK_ROWS = 200  # rows of a table in a notebook, whose file holds every row that was shown
NOTEBOOK = TextOptions(width=120, top=NOTEBOOK_ROWS, html=True)
MARKDOWN = TextOptions(width=120, markdown=True)


def result_table(table: Table, options: TextOptions, shown: int | None = None) -> list[Text]:
    """Return the table of a result as lines, sorted and cut as ``options`` say."""
    ordered = order_rows(table, options.sort) if options.sort else table
    top = options.top or (None if options.width is None else shown)
    cut = replace(ordered, rows=ordered.rows[:top])
    if options.tables is not None:
        options.tables.main.append(cut)
        return []
    lines = table_lines(cut, options)
    left = len(table.rows) - len(cut.rows)
    if not left or options.width is None:
        return lines
    more = "" if options.top else " --top N shows more."
    return [*lines, *sentence(f"... and {plural(left, 'more row')}.{more}", options, "dim")]


def table_lines(table: Table, options: TextOptions) -> list[Text]:
    """Return a table as lines for a terminal, for a pipe, or of HTML, its texts never as markup."""
    if options.tables is not None:
        options.tables.others.append(table)
        return []
    if options.precision is not None:
        table = replace(table, rows=tuple(_rounded(row, options.precision) for row in table.rows))
    if options.html:
        return [Text(html_table(table))]
    if options.markdown:
        return [Text(markdown_table(table))]
    if options.width is None:
        return _pipe_lines(table, options)
    fitted = _fit(table, options.width, options.ascii)
    return [_header(fitted), *(line for row in table.rows for line in _row_lines(row, fitted))]


def _rounded(row: Row, digits: int) -> Row:
    """The row with its numbers rounded to ``digits`` significant digits."""
    cells = [
        replace(cell, text=number_text(cell.value, digits), short=None) if cell.rounded else cell
        for cell in row.cells
    ]
    return replace(row, cells=tuple(cells))


def sentence(text: str, options: TextOptions, style: str = "") -> list[Text]:
    """Return a sentence as lines: wrapped on a terminal, one line in a pipe or of HTML."""
    if options.html:
        return [Text(html_sentence(text, style))]
    if options.markdown:
        return [Text(markdown_paragraph(text))]
    shown = visible(text, options.ascii)
    lines = [shown] if options.width is None else wrap(shown, options.width)
    return [Text(line, style) for line in lines]


def join_blocks(*blocks: list[Text], options: TextOptions) -> list[Text]:
    """Return the lines of all blocks; on a terminal with an empty line between two blocks."""
    lines: list[Text] = []
    for block in filter(None, blocks):
        spaced = lines and options.width is not None and not options.is_page
        lines += [Text(), *block] if spaced else block
    return lines


def _pipe_lines(table: Table, options: TextOptions) -> list[Text]:
    """All columns, aligned, ``-`` for an empty cell, the note as the last column."""
    grid = [[(column.title, "bold") for column in table.pipe_columns]]
    for row in table.rows:
        grid.append([(_pipe_text(cell, options), cell.style) for cell in table.pipe_cells(row)])
    widths = [
        min(max(cell_len(line[i][0]) for line in grid), MAX_PADDED_WIDTH)
        for i in range(len(table.pipe_columns))
    ]
    right = [column.right for column in table.pipe_columns]
    return [_pipe_line(entries, widths, right) for entries in grid]


def _pipe_line(
    entries: Sequence[tuple[str, str]], widths: Sequence[int], right: Sequence[bool]
) -> Text:
    """A line of padded cells, made at once: rich takes 5 us for each part that is appended."""
    line, spans = "", []
    for (text, style), width, on_right in zip(entries, widths, right, strict=True):
        pad = " " * (width - cell_len(text))
        line += f"{GAP if line else ''}{pad if on_right else ''}"
        if style and text:
            spans.append(Span(len(line), len(line) + len(text), style))
        line += text if on_right else f"{text}{pad}"
    return Text(line.rstrip(), spans=spans)


def _pipe_text(cell: Cell, options: TextOptions) -> str:
    if cell.full is None and cell.value is not None:
        return full_text(cell.value, options.precision or PIPE_DIGITS)
    return visible(cell.text if cell.full is None else cell.full, options.ascii) or "-"


def _append_cell(line: Text, text: str, width: int, right: bool, style: str) -> None:
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
    """The columns of a table that fit on a terminal, and their widths."""

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
    """Cells to keep free beside the columns; wider notes are printed below their rows."""
    notes = [visible(row.note.text, ascii) for row in table.rows if not row.missing]
    widths = [cell_len(note) + len(GAP) for note in notes if note]
    return max((width for width in widths if width <= INLINE_NOTE), default=0)


def _distinct_texts(table: Table) -> list[set[str]]:
    """The different texts of each column."""
    return [{row.cells[i].text for row in table.rows} for i in range(len(table.columns))]


def _squeeze_steps(table: Table) -> Iterator[tuple[str, int]]:
    """Steps in order: optional columns, the steps of the table, then columns from the right."""
    index = {column.title: i for i, column in enumerate(table.columns)} | {table.note: NOTE_INDEX}
    for i, texts in enumerate(_distinct_texts(table)):
        if table.columns[i].optional and len(texts - {""}) <= 1:
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
        _append_cell(line, title, width, right, "bold")
    line.rstrip()
    line.truncate(fitted.width)
    return line


def _row_lines(row: Row, fitted: _Fitted) -> list[Text]:
    name = visible(row.cells[0].text, fitted.ascii)
    cells = [(row.cells[i], i) for i in fitted.indexes[1:]]
    line = Text().append(row.guide, "dim").append(name, row.cells[0].style)
    lines: list[Text] = []
    if line.cell_len > fitted.widths[0]:  # the name on its own lines, the cells on the next line
        lines = _folded_name(row, name, fitted.width)
        line = Text().append(row.continuation, "dim")
        line.truncate(fitted.widths[0])
    line.append(" " * (fitted.widths[0] - line.cell_len))
    while row.missing and cells and not fitted.text(*cells[-1]):
        cells.pop()
    for (cell, i), width, right in zip(cells, fitted.widths[1:], fitted.right[1:], strict=False):
        _append_cell(line, fitted.text(cell, i), width, right, cell.style)
    if not lines or any(fitted.text(*cell) for cell in cells):
        lines.append(line)
    _add_note(lines, row, fitted)
    for line in lines:
        line.rstrip()
    return lines


def _folded_name(row: Row, name: str, width: int) -> list[Text]:
    """A name that is wider than its column, on several lines."""
    guide, continuation = row.guide, row.continuation
    drawn = max(cell_len(guide), cell_len(continuation))
    if width - drawn < MIN_TEXT_WIDTH:
        guide, continuation, drawn = "", "", 0
    return [
        Text().append(continuation if n else guide, "dim").append(piece, row.cells[0].style)
        for n, piece in enumerate(fold(name, width - drawn))
    ]


def _add_note(lines: list[Text], row: Row, fitted: _Fitted) -> None:
    """Put the note beside the columns if there is room, else below the row."""
    note = visible(row.note.text, fitted.ascii)
    if not note:
        return
    if lines[-1].cell_len + len(GAP) + cell_len(note) <= fitted.width:
        lines[-1].append(GAP).append(note, row.note.style)
        return
    fits = fitted.width - cell_len(row.continuation) >= MIN_TEXT_WIDTH
    guide = row.continuation if fits else ""
    for piece in wrap(note, fitted.width - cell_len(guide) - len(GAP), ""):
        lines.append(Text().append(guide, "dim").append(GAP).append(piece, row.note.style))
