"""A sweep as text: a heat map of layers by positions, heads or experts, or a table of layers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from hookscope.files.words import number_text, plural, token_text
from hookscope.results.sweep import Sweep, SweepCell, SweepColumn
from hookscope.specs.choices import SWEEP_METRICS
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, filed_document
from hookscope.views.images.colors import ColorScale
from hookscope.views.images.figures.drawing import recording_caption
from hookscope.views.layer_map import LayerMap, LayerMaps
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    coverage_lines,
    failed_lines,
    number_cell,
    skipped_lines,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

UNSIGNED = ("kl", "output")  # metrics that are not negative
DIGITS = 3  # of a value in a cell

CELL_WIDTH = 8  # of a column of the heat map
# The columns that the table of some sweep or ablation has, for a check of a name.
POSSIBLE_COLUMNS = (
    *("layer", "type", "position", "token", "head", "expert", "channel"),
    *(*SWEEP_METRICS, "flipped"),
)
_ROUNDED = {
    "zero": "output set to zero",
    "quantize": "output rounded to {argument} bits, one grid for the tensor",
    "quantize-weights": "weights rounded to {argument} bits, one symmetric grid per output channel",
    "dtype": "output rounded to {argument} and back",
}


def sweep_values(result: Sweep) -> NDArray[np.float64]:
    """Return the metric of the map, layers by columns; NaN where it is not defined."""
    rows = [[cell_value(result, cell) for cell in cells] for _, cells in result.by_layer()]
    return np.array(rows, dtype=np.float64).reshape(len(result.layers), len(result.columns))


def cell_value(result: Sweep, cell: SweepCell | None) -> float:
    """Return the metric of the map of one cell; NaN if it is not defined."""
    value = None if cell is None else cell.metric(result.metric)
    return math.nan if value is None else value


def cell_text(result: Sweep, cell: SweepCell | None) -> str:
    """Return the metric of the map of one cell as text."""
    if cell is None:
        return ""
    return "failed" if cell.failed else number_text(cell.metric(result.metric), DIGITS)


def sweep_scale(result: Sweep) -> ColorScale:
    """Return the scale of the map: from 0 for metrics without a sign, else with 0 in the middle."""
    values = sweep_values(result)
    finite = np.abs(values[np.isfinite(values)])
    most = float(finite.max()) if finite.size else 0.0
    if result.metric in UNSIGNED:
        return ColorScale(0.0, most)
    return ColorScale(-most, most, diverging=True)


def sweep_lines(result: Sweep, options: TextOptions) -> list[Text]:
    """Return the whole summary: in a pipe one line for each cell."""
    head = sentence(title_text(result), options, "bold")
    is_map = bool(result.axis) and not options.lists_rows and not options.is_page
    if is_map:
        block = sweep_maps(result, options.ascii).lines(CELL_WIDTH, options)
        block += _largest(result, options)
    else:
        block = _table(result, options)
    shown = meanings(result)[: 1 if is_map else None]
    meaning = [line for text in shown for line in sentence(text, options)]
    if not result.axis and len(result.cells) > 1:
        meaning += _largest(result, options)
    notes = [
        *failed_lines(((c.failed, c.layer) for c in result.cells if c.failed), options),
        *coverage_lines(result.coverage, options),
        *skipped_lines(result.left_out, options),
        *sentence(result.reuse, options, "dim"),
    ]
    return join_blocks(head, block, meaning, notes, options=options)


def title_text(result: Sweep) -> str:
    """Return the title: the edit, where it was applied, and the metric."""
    name, _, argument = result.edit.partition(":")
    what = _ROUNDED.get(name, "").format(argument=argument)
    places = plural(len(result.layers), "layer")
    if result.axis:
        places += f" by {plural(len(result.columns), result.axis)}"
    meaning = f" ({what})" if what else ""
    return f"{result.edit}{meaning}, {places}: {metric_text(result)}."


def metric_text(result: Sweep) -> str:
    """Return the metric of the map in words."""
    clean = result.clean
    texts = {
        "difference": f"change of the logit of {clean.target} minus that of {clean.against}",
        "score": f"change of the logit of the target ({clean.target})",
        "loss": f"change of the loss {clean.loss_name}",
        "kl": "divergence of the prediction",
        "output": "relative change of the output",
    }
    return texts[result.metric]


def meanings(result: Sweep) -> list[str]:
    """Return a sentence for each metric that is shown, with its value without the edit."""
    clean = result.clean
    at = f" {clean.read_at}" if clean.read_at else ""
    texts = {
        "difference": f"change of the logit of {clean.target} minus that of {clean.against}{at},"
        f" mean over the rows; {number_text(clean.difference)} without the edit.",
        "score": f"change of the logit of the target ({clean.target}){at}, mean over the rows;"
        f" {number_text(clean.score)} without the edit.",
        "loss": f"change of the loss {clean.loss_name}{at}; {number_text(clean.loss)} without the"
        " edit.",
        "kl": f"Kullback-Leibler divergence from the prediction without the edit{at}, in nats.",
        "output": "norm of the change of the model's output over the norm of the output without"
        " the edit.",
    }
    return [f"{name}: {texts[name]}" for name in result.metrics]


def _largest(result: Sweep, options: TextOptions) -> list[Text]:
    values = [(abs(cell_value(result, cell)), cell) for cell in result.cells]
    finite = [pair for pair in values if math.isfinite(pair[0])]
    if not finite or not max(size for size, _ in finite):
        return sentence("No edit changed the metric.", options, NOTICE_STYLE)
    cell = max(finite, key=lambda pair: pair[0])[1]
    column = result.columns[cell.column]
    label = f" ({token_text(column.label, options.ascii)!r})" if column.label != column.name else ""
    place = layer_text(cell.layer)
    if result.axis:
        place += f", {result.axis} {column.name}{label}"
    return sentence(
        f"largest {result.metric}: {place}, {number_text(cell_value(result, cell))}", options
    )


def _table(result: Sweep, options: TextOptions) -> list[Text]:
    metrics = result.metrics
    axis = [Column(result.axis, right=True)] * bool(result.axis)
    token = [Column("token")] * (result.axis == "position")
    columns = (
        *(Column("layer"), Column("type")),
        *(*axis, *token),
        *(Column(name, right=True) for name in metrics),
        *[Column("flipped", right=True)] * bool(result.clean.decisions),
    )
    squeeze = (*shorten(*metrics), *drop("type", "flipped", *reversed(metrics[1:]), "note"))
    rows = tuple(_row(result, cell, metrics, options) for cell in result.cells)
    return result_table(Table(columns, rows, squeeze), options)


def _row(result: Sweep, cell: SweepCell, metrics: tuple[str, ...], options: TextOptions) -> Row:
    column = result.columns[cell.column]
    place = [Cell(column.name)] * bool(result.axis)
    token = [Cell(token_text(column.label, options.ascii))] * (result.axis == "position")
    flipped = [Cell("" if cell.flipped is None else str(cell.flipped), value=cell.flipped)]
    cells = (
        *(Cell(layer_text(cell.layer)), Cell(cell.type, style="cyan")),
        *(*place, *token),
        *(number_cell(cell.metric(name)) for name in metrics),
        *flipped * bool(result.clean.decisions),
    )
    if cell.failed:
        return Row(cells, Cell("failed", full=f"failed: {cell.failed}", style=ALERT_STYLE))
    wrong = any(not math.isfinite(cell.metric(name) or 0.0) for name in metrics)
    return Row(cells, Cell("not finite" if wrong else "", style=ALERT_STYLE))


def _column_title(column: SweepColumn, ascii: bool) -> str:
    """The token of a position, or the number of a head or expert."""
    has_token = column.label != column.name
    return (token_text(column.label, ascii) if has_token else column.name) or "whole layer"


def sweep_maps(result: Sweep, ascii: bool = False) -> LayerMaps:
    """Return the map: layers by positions, heads or experts."""
    rows = [cells for _, cells in result.by_layer()]
    only = LayerMap(
        f"By {result.axis}" if result.axis else "By layer",
        list(map(layer_text, result.layers)),
        [_column_title(column, ascii) for column in result.columns],
        sweep_values(result),
        [[cell_text(result, cell) for cell in cells] for cells in rows],
        [[_details(result, cell) for cell in cells] for cells in rows],
    )
    return LayerMaps(
        title_text(result),
        recording_caption(result.metadata),
        result.metric,
        result.axis,
        result.axis or "column",
        "layer",
        sweep_scale(result),
        [only],
    )


def _details(result: Sweep, cell: SweepCell | None) -> str:
    if cell is None or cell.failed:
        return "" if cell is None else cell.failed
    lines = [cell.layer]
    if result.axis:
        lines.append(f"{result.axis} {result.columns[cell.column].name}")
    lines += [f"{name}: {number_text(cell.metric(name))}" for name in result.metrics]
    return "\n".join(lines)


def write_sweep_page(result: Sweep, path: Path) -> int:
    """Write the page of a sweep; return its size in bytes."""
    meaning = (*meanings(result), f"The colour is {result.metric}. {result.reuse}")
    left = [f"Skipped: {layer_text(x.layer)} ({x.reason})." for x in result.left_out]
    failed = {f"Failed: {layer_text(c.layer)}. {c.failed}": None for c in result.cells if c.failed}
    page = sweep_maps(result).page(meaning, (*left, *failed), lambda end: number_text(end, DIGITS))
    return page.write(path)


VIEW: View[Sweep] = View(
    sweep_lines,
    filed_document("sweep"),
    write_sweep_page,
    lambda result, dpi: sweep_maps(result).draw("sweep"),
    (*map(Column, POSSIBLE_COLUMNS), NOTE),
)
