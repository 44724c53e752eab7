"""A table or a sentence as lines: for a terminal of some width, or for a pipe.

A pipe gets every column, full values, and one record a line.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from hookscope.views.text.table import Cell, Table
from hookscope.views.text.terminal import put, terminal_lines
from hookscope.views.text.text import visible, wrap

PADDED = 100  # a cell wider than this pushes its own line aside, and not all the others too


def lower(table: Table, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the table's lines for a terminal of ``width`` cells, or for a pipe (None).

    Args:
        table: what to show; all its texts are taken literally, never as markup.
        width: cells of the terminal, None for a stream that is no terminal.
        ascii: write everything outside ASCII as an escape.
    """
    if width is None:
        return _pipe(table, ascii)
    return terminal_lines(table, width, ascii)


def sentence(text: str, width: int | None, ascii: bool = False, style: str = "") -> list[Text]:
    """Return a sentence as lines: wrapped for a terminal of ``width`` cells, one line in a pipe."""
    shown = visible(text, ascii)
    return [Text(line, style) for line in ([shown] if width is None else wrap(shown, width))]


def blocks(*parts: list[Text], width: int | None) -> list[Text]:
    """Return the parts in one list; on a terminal with an empty line between them."""
    lines: list[Text] = []
    for part in filter(None, parts):
        lines += [Text(), *part] if lines and width is not None else part
    return lines


def _pipe(table: Table, ascii: bool) -> list[Text]:
    """All columns, aligned, ``-`` for what is empty, the note as the last column."""
    noted = bool(table.note)
    grid = [
        [(title, "bold") for title in (*(c.title for c in table.columns), *[table.note] * noted)]
    ]
    for row in table.rows:
        cells = (*row.cells, *[row.note] * noted)
        grid.append([(_full(cell, ascii), cell.style) for cell in cells])
    widths = [min(max(cell_len(line[i][0]) for line in grid), PADDED) for i in range(len(grid[0]))]
    right = (*(column.right for column in table.columns), *[False] * noted)
    lines = []
    for entries in grid:
        line = Text()
        for (text, style), width, on_right in zip(entries, widths, right, strict=True):
            put(line, text, width, on_right, style)
        line.rstrip()
        lines.append(line)
    return lines


def _full(cell: Cell, ascii: bool) -> str:
    return visible(cell.text if cell.full is None else cell.full, ascii) or "-"
