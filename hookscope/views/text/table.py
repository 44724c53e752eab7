"""Tables as data: columns, rows and cells, from which text, CSV and HTML are made."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from html import escape
from typing import Literal

from hookscope.errors import RequestError
from hookscope.escapes import visible
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import FULL_DIGITS, full_text, plural

Squeeze = tuple[Literal["drop", "shorten"], str]

# The styles of a terminal in colours that are legible on a light and on a dark page.
_STYLES = {
    "bold": "font-weight:bold",
    "dim": "opacity:0.7",
    "red": "color:#d33",
    "green": "color:#2a8f2a",
    "yellow": "color:#b07a00",
    "blue": "color:#4a7fd0",
    "cyan": "color:#1a8a9a",
    "magenta": "color:#b050b0",
}

_MARKS = re.compile(r"[\\`*\[\]<>|~]|(?<![^\W_])_|_(?![^\W_])")  # of Markdown, within a line
SHOWN_ROWS = 20  # the other rows of a table are folded


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

    An ``optional`` column is dropped first on a narrow terminal if all its cells are equal. A page
    of HTML says what a column is ``about``.
    """

    title: str
    short: str | None = None
    right: bool = False
    optional: bool = False
    about: str = ""


NOTE = Column("note")


def shorten(*titles: str) -> tuple[Squeeze, ...]:
    """Return steps that give columns their short titles and texts, in this order."""
    return tuple(("shorten", title) for title in titles)


def drop(*titles: str) -> tuple[Squeeze, ...]:
    """Return steps that leave out columns, in this order."""
    return tuple(("drop", title) for title in titles)


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

    @classmethod
    def of(cls, *cells: Cell) -> Row:
        """Return a row of cells without a note."""
        return cls(cells)


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
    """Return a table as CSV."""
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


def order_rows(table: Table, sort: str) -> Table:
    """Return the table with its rows sorted; equal rows keep their order.

    Numbers are sorted from the largest to the smallest, after NaN and before cells without a
    number; texts from A to Z, before empty cells. Missing rows come last. Lines that connect a row
    with the rows above it are left out.
    """
    index = find_column(table.pipe_columns, sort)
    reverse = sort.startswith("-")
    cells = [(table.pipe_cells(row)[index], row) for row in table.rows if not row.missing]
    if any(cell.value is not None for cell, _ in cells):
        cells.sort(key=lambda pair: _number_key(pair[0].value, reverse))
    else:
        cells.sort(key=lambda pair: pair[0].text, reverse=reverse)
        cells.sort(key=lambda pair: not pair[0].text)
    rows = [row for _, row in cells]
    rows += [row for row in table.rows if row.missing]
    return replace(table, rows=tuple(map(_unconnected, rows)))


def find_column(columns: Iterable[Column], sort: str) -> int:
    """Return the index of the column that ``sort`` names."""
    name = sort.removeprefix("-").casefold()
    titles = []
    for i, column in enumerate(columns):
        if name in (column.title.casefold(), (column.short or "").casefold()) and name:
            return i
        titles.append(column.title)
    near = did_you_mean(name, titles)
    raise RequestError(
        f"The table has no column {sort.removeprefix('-')!r}.",
        near or f"Its columns are {', '.join(titles)}.",
    )


def _number_key(value: float | int | None, ascending: bool) -> tuple[int, float | int]:
    if value is None:
        return 2, 0
    if math.isnan(value):
        return 0, 0
    return 1, value if ascending else -value


def _unconnected(row: Row) -> Row:
    if not row.guide and not row.continuation:
        return row
    name = replace(row.cells[0], full=None)  # without the indentation of a pipe
    return replace(row, cells=(name, *row.cells[1:]), guide="", continuation="")


def _filled_columns(table: Table) -> list[int]:
    """The first column, and those that are not empty in every row."""
    return [
        i
        for i in range(len(table.columns))
        if i == 0 or any(row.cells[i].text for row in table.rows)
    ]


def html_table(table: Table) -> str:
    """Return a table as HTML, without the columns that are empty in every row.

    The rows after the first 20 are in a part that the reader opens.

    >>> from hookscope.views.text.text_table import Cell, Column, Row, Table
    >>> print(html_table(Table((Column("layer"),), (Row((Cell("a<b"),)),), note="")))
    <table>
    <thead><tr><th style="text-align:left">layer</th></tr></thead>
    <tbody>
    <tr><td style="text-align:left;white-space:pre">a&lt;b</td></tr>
    </tbody>
    </table>
    """
    shown = _filled_columns(table)
    noted = any(row.note.text for row in table.rows)
    titles = [_element("th", table.columns[i].title, right=table.columns[i].right) for i in shown]
    titles += [_element("th", table.note)] * noted
    # The lines of a tree meet only if every character has the same width.
    name_css = ["font-family:monospace"] * any(row.guide for row in table.rows)
    rows = [_html_row(row, shown, table, noted, name_css) for row in table.rows]
    head = f"<table>\n<thead><tr>{''.join(titles)}</tr></thead>"
    ends = "</tbody>", "</table>"
    lines = [head, "<tbody>", *rows[:SHOWN_ROWS], *ends]
    if folded := rows[SHOWN_ROWS:]:
        summary = f"<details><summary>{plural(len(folded), 'more row')}</summary>"
        lines += [summary, head, "<tbody>", *folded, *ends, "</details>"]
    return "\n".join(lines)


def markdown_table(table: Table) -> str:
    r"""Return a table as Markdown, without the columns that are empty in every row.

    >>> from hookscope.views.text.text_table import Cell, Column, Row, Table
    >>> print(markdown_table(Table((Column("layer"),), (Row((Cell("a|b"),)),), note="")))
    | layer |
    |---|
    | a\|b |
    <BLANKLINE>
    """
    shown = _filled_columns(table)
    noted = any(row.note.text for row in table.rows)
    titles = [table.columns[i].title for i in shown] + [table.note] * noted
    rule = ["---:" if table.columns[i].right else "---" for i in shown] + ["---"] * noted
    rows = ([row.cells[i].text for i in shown] + [row.note.text] * noted for row in table.rows)
    lines = [_markdown_row(titles), f"|{'|'.join(rule)}|", *map(_markdown_row, rows)]
    return "\n".join([*lines, ""])


def _markdown_row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(map(_markdown_text, texts))} |"


def _markdown_text(text: str) -> str:
    return _MARKS.sub(r"\\\g<0>", visible(text))


def markdown_paragraph(text: str) -> str:
    r"""Return a sentence as a paragraph, in which no character is a mark of Markdown.

    >>> markdown_paragraph("layer1.*: a_b, __c")
    'layer1.\\*: a_b, \\_\\_c\n'
    """
    return f"{_markdown_text(text)}\n"


def html_sentence(text: str, style: str = "") -> str:
    """Return a sentence as a paragraph."""
    styles = ";".join(["margin:0.3em 0", *_css(style)])
    return f'<p style="{styles}">{escape(visible(text))}</p>'


def _html_row(row: Row, shown: list[int], table: Table, noted: bool, name_css: list[str]) -> str:
    name = row.guide + visible(row.cells[0].text)
    css = ["white-space:pre", *name_css, *_css(row.cells[0].style)]
    cells = [
        _element("td", name, css),
        *(_cell(row.cells[i], table.columns[i].right) for i in shown[1:]),
    ]
    cells += [_cell(row.note)] * noted
    return f"<tr>{''.join(cells)}</tr>"


def _cell(cell: Cell, right: bool = False) -> str:
    return _element("td", visible(cell.text), _css(cell.style), right)


def _element(tag: str, text: str, css: list[str] | None = None, right: bool = False) -> str:
    styles = ";".join([f"text-align:{'right' if right else 'left'}", *(css or ())])
    return f'<{tag} style="{styles}">{escape(text)}</{tag}>'


def _css(style: str) -> list[str]:
    """The CSS of a style of the terminal, such as ``bold red``."""
    return [_STYLES[word] for word in style.split()]
