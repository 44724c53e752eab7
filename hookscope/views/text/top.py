"""Ranked inputs of units as text: a row for each input of a unit, with the quantiles above them.

In texts, the token with the largest value is in brackets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rich.cells import cell_len
from rich.text import Text

from hookscope.file_analysis.units.top_inputs import QUANTILES, RankedInput, RankedUnit, TopInputs
from hookscope.files.words import (
    DIGITS,
    count_text,
    number_text,
    plural,
    shape_text,
    visible,
)
from hookscope.views.text.shared_parts import NOTICE_STYLE, count_cell, number_cell
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text_context import marked_text
from hookscope.views.text.text_table import (
    GAP,
    NAME_SHARE,
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)

_SHOWN = 3  # inputs of each end on a terminal; a pipe gets all
_LEAST_TEXT = 24  # cells for a text beside the columns


def top_lines(result: TopInputs, options: TextOptions) -> list[Text]:
    """Return the ranked inputs of each unit; in a pipe one line for each.

    Args:
        result: the ranking.
        options: where the lines are printed.
    """
    notes = [line for note in result.notes for line in sentence(note, options, NOTICE_STYLE)]
    cut = options.html or not options.lists_rows
    units = [*_unit_table(result, options)]
    inputs = _input_table(result, options, _SHOWN if cut else None)
    if cut and any(len(unit.most) > _SHOWN for unit in result.units):
        text = f"The first {_SHOWN} of each end are shown; a pipe and a file (-o) have all."
        inputs += sentence(text, options, "dim")
    return join_blocks(
        sentence(top_title(result), options, "bold"), units, inputs, notes, options=options
    )


def top_title(result: TopInputs) -> str:
    """Return a sentence with the layer, the folder and what an activation is."""
    how = f", {result.by} over positions" if result.by else ""
    return (
        f"{result.key} ({shape_text(result.shape)}) of {result.model}:"
        f" {plural(len(result.units), result.what)}{how}, {count_text(result.rows)} inputs."
    )


def quantile_text(unit: RankedUnit) -> str:
    """Return the quantiles of a unit as text."""
    pairs = zip(QUANTILES, unit.quantiles, strict=True)
    return ", ".join(f"{share:.0%} {number_text(value, 3)}" for share, value in pairs)


def input_name(ranked: RankedInput) -> str:
    """Return the last part of an input's path, with its label."""
    name = os.path.basename(ranked.name)
    return name if ranked.label is None else f"{name} [{ranked.label}]"


def _unit_table(result: TopInputs, options: TextOptions) -> list[Text]:
    titles = [f"{share:.0%}" for share in QUANTILES]
    columns = (
        Column(result.what),
        *(Column(title, right=True) for title in ("least", *titles, "most", "mean")),
    )
    squeeze: tuple[Squeeze, ...] = (
        *(("shorten", column.title) for column in columns[1:]),
        *(("drop", title) for title in ("25%", "75%", "1%", "99%", "mean")),
    )
    rows = tuple(
        Row(
            (
                Cell(str(unit.unit)),
                number_cell(unit.least[0].value if unit.least else None),
                *map(number_cell, unit.quantiles),
                number_cell(unit.most[0].value if unit.most else None),
                number_cell(unit.mean),
            )
        )
        for unit in result.units
    )
    return table_lines(Table(columns, rows, squeeze, note=""), options)


def _input_table(result: TopInputs, options: TextOptions, shown: int | None) -> list[Text]:
    columns = (
        *(Column("input"), Column(result.what, right=True), Column("end")),
        *(Column("activation", right=True), Column("position"), Column("label")),
        Column("row", right=True),
    )
    squeeze: tuple[Squeeze, ...] = (
        ("shorten", "activation"),
        *(("drop", title) for title in ("row", "position", "label")),
    )
    entries = [
        (unit, end, ranked)
        for unit in result.units
        for end, inputs in (("most", unit.most), ("least", unit.least))
        for ranked in inputs[:shown]
    ]
    rows = tuple(
        Row(
            (
                Cell(ranked.name),
                count_cell(unit.unit),
                Cell(end),
                number_cell(ranked.value),
                Cell("" if ranked.position is None else ",".join(map(str, ranked.position))),
                Cell("" if ranked.label is None else str(ranked.label)),
                count_cell(ranked.row),
            )
        )
        for unit, end, ranked in entries
    )
    table = Table(columns, rows, squeeze, note="")
    if result.texts:
        table = _with_texts(table, [ranked for _, _, ranked in entries], options)
    return result_table(table, options)


def _with_texts(table: Table, inputs: Sequence[RankedInput], options: TextOptions) -> Table:
    """The table with the text of each row beside the columns, or below them if there is no room.

    On a terminal, brackets take the place of the position.
    """
    hidden = {"row", *(["position"] if all(ranked.token for ranked in inputs) else [])}
    unseen = [i for i, column in enumerate(table.columns) if column.title in hidden]
    rows = [list(row.cells) for row in table.rows]
    for cells in rows:
        for i in unseen:
            cells[i] = replace(cells[i], text="", full=cells[i].text)
    table = replace(table, rows=tuple(Row(tuple(cells)) for cells in rows), note="text")
    room = None
    if options.width is not None:
        room = _free_cells(table, options.width, options)
        room = room if room >= _LEAST_TEXT else options.width - len(GAP)
    shown = partial(visible, ascii=options.ascii)
    notes = (Cell(marked_text(ranked, room, shown)) for ranked in inputs)
    return replace(
        table,
        rows=tuple(replace(row, note=note) for row, note in zip(table.rows, notes, strict=True)),
    )


def _free_cells(table: Table, width: int, options: TextOptions) -> int:
    """Cells beside the columns of a table, whose names have their usual share of the width."""
    taken = 0
    for i, column in enumerate(table.columns):
        cells = [row.cells[i] for row in table.rows]
        texts = [
            number_text(cell.value, options.precision or DIGITS) if cell.rounded else cell.text
            for cell in cells
        ]
        widest = max(cell_len(visible(text, options.ascii)) for text in (column.title, *texts))
        if i == 0:
            widest = min(widest, max(int(width * NAME_SHARE), len(column.title)))
        taken += widest + len(GAP) if any(texts) else 0
    return width - taken
