"""The order of the rows of a table: sorted by a column."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hookscope.errors import RequestError
from hookscope.files.suggestions import did_you_mean

if TYPE_CHECKING:
    from hookscope.views.text.table import Column, Row, Table


def order_rows(table: Table, sort: str) -> Table:
    """Return the table with its rows sorted; equal rows keep their order.

    Numbers are sorted from the largest to the smallest, after NaN and before cells without a
    number; texts from A to Z, before empty cells. Missing rows come last. Lines that connect a row
    with the rows above it are left out.

    Example:
        >>> from hookscope.views.text.text_table import Cell, Column, Row, Table
        >>> rows = tuple(Row((Cell(name), Cell(value=n))) for name, n in (("a", 1), ("b", 2)))
        >>> table = Table((Column("layer"), Column("mean")), rows)
        >>> [row.cells[0].text for row in order_rows(table, "mean").rows]
        ['b', 'a']
        >>> [row.cells[0].text for row in order_rows(table, "-mean").rows]
        ['a', 'b']
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
