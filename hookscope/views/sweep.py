"""A sweep as text: a heat map of layers by positions, heads or experts, or a table of layers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from hookscope.files.words import number_text, plural, token_text
from hookscope.results.sweep import Sweep, SweepCell
from hookscope.specs.choices import SWEEP_METRICS
from hookscope.specs.patterns import layer_text
from hookscope.views.images.colors import ColorScale
from hookscope.views.images.figures.drawing import Drawing, recording_caption
from hookscope.views.layer_map import (
    LEVELS,
    HeatCell,
    HeatMap,
    LayerMap,
    LayerMapCell,
    LayerMapLabels,
    LayerMapPage,
    LayerMapPanel,
    LayerMapRow,
    draw_layer_map,
    heat_map_rows,
    write_layer_map_page,
)
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    coverage_lines,
    group_names,
    join_names,
    number_cell,
    skipped_lines,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence
from hookscope.views.view import View, filed_document

UNSIGNED = ("kl", "output")  # metrics that are not negative
DIGITS = 3  # of a value in a cell

CELL_WIDTH = 8  # of a column of the heat map
_ROUNDED = {
    "zero": "output set to zero",
    "quantize": "output rounded to {argument} bits, one grid for the tensor",
    "quantize-weights": "weights rounded to {argument} bits, one symmetric grid per output channel",
    "dtype": "output rounded to {argument} and back",
}
_WHOLE = "whole layer"


def sweep_values(result: Sweep) -> NDArray[np.float64]:
    """Return the metric of the map, layers by columns; NaN where it is not defined.

    Example:
        >>> from hookscope.results.records import Coverage
        >>> from hookscope.results.sweep import SweepBaseline, SweepColumn
        >>> cells = (SweepCell("fc", "Linear", score=-0.5),)
        >>> sweep_values(Sweep("zero", "", "score", 1, SweepBaseline(), ("fc",), (SweepColumn(),),
        ...                    cells, (), Coverage(), "", {})).tolist()
        [[-0.5]]
    """
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
    is_map = bool(result.axis) and not options.lists_rows and not options.html
    block = _heat_map(result, options) if is_map else _table(result, options)
    shown = meanings(result)[: 1 if is_map else None]
    meaning = [line for text in shown for line in sentence(text, options)]
    if not result.axis and len(result.cells) > 1:
        meaning += _largest(result, options)
    notes = [
        *_failures(result, options),
        *coverage_lines(result.coverage, options),
        *skipped_lines(result.left_out, options),
        *sentence(result.reuse, options, "dim"),
    ]
    return join_blocks(head, block, meaning, notes, options=options)


def possible_columns() -> tuple[Column, ...]:
    """Return the columns that the table of some sweep or ablation has, for a check of a name."""
    places = ("position", "token", "head", "expert", "channel")
    return tuple(map(Column, ("layer", "type", *places, *SWEEP_METRICS, "flipped")))


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


def _heat_map(result: Sweep, options: TextOptions) -> list[Text]:
    colors = sweep_scale(result).paint(sweep_values(result))
    rows = [
        [
            HeatCell(cell_text(result, cell), _color(result, cell, colors[y, x].tolist()))
            for x, cell in enumerate(cells)
        ]
        for y, (_, cells) in enumerate(result.by_layer())
    ]
    titles = [column_title(result, n, options.ascii) for n in range(len(result.columns))]
    heat = HeatMap("layer", result.layers, titles, rows)
    lines, hidden = heat_map_rows(heat, CELL_WIDTH, options)
    if hidden:
        text = f"The first {plural(hidden, result.axis)} are in the file, in a picture and in a"
        lines += sentence(f"{text} pipe.", options, "dim")
    return [*lines, *_largest(result, options)]


def _color(result: Sweep, cell: SweepCell | None, color: list[int]) -> tuple[int, int, int] | None:
    red, green, blue = color
    return (red, green, blue) if math.isfinite(cell_value(result, cell)) else None


def column_title(result: Sweep, index: int, ascii: bool = False) -> str:
    """Return the title of a column: the token of a position, or the number of a head."""
    column = result.columns[index]
    return token_text(column.label, ascii) if column.label != column.name else column.name


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
    squeeze: tuple[Squeeze, ...] = (
        *(("shorten", name) for name in metrics),
        ("drop", "type"),
        ("drop", "flipped"),
        *(("drop", name) for name in reversed(metrics[1:])),
        ("drop", "note"),
    )
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


def _failures(result: Sweep, options: TextOptions) -> list[Text]:
    failed = group_names((cell.failed, cell.layer) for cell in result.cells if cell.failed)
    return [
        line
        for reason, names in failed.items()
        for line in sentence(
            f"Failed: {join_names(list(dict.fromkeys(names)), options)}. {reason}",
            options,
            ALERT_STYLE,
        )
    ]


def draw_sweep(result: Sweep) -> Drawing:
    """Draw the map: layers from bottom to top, positions, heads or experts to the right."""
    texts = [[cell_text(result, cell) for cell in cells] for _, cells in result.by_layer()]
    columns = [column_title(result, n) or _WHOLE for n in range(len(result.columns))]
    labels = LayerMapLabels(
        title_text(result),
        recording_caption(result.metadata),
        result.metric,
        result.axis,
        result.axis or "column",
    )
    panel = LayerMapPanel(sweep_values(result), texts, columns)
    return draw_layer_map([panel], result.layers, sweep_scale(result), labels, "sweep")


def write_sweep_page(result: Sweep, path: str | os.PathLike[str]) -> int:
    """Write the page of a sweep; return its size in bytes."""
    scale = sweep_scale(result)
    ends = np.linspace(scale.low, scale.high, LEVELS + 1)
    page = LayerMapPage(
        title=title_text(result),
        caption=recording_caption(result.metadata),
        meaning=(*meanings(result), f"The colour is {result.metric}. {result.reuse}"),
        notes=_notes(result),
        scale=tuple(number_text(float(end), DIGITS) for end in ends),
        color="d" if scale.diverging else "p",
        corner="layer",
        maps=(_map(result),),
    )
    return write_layer_map_page(page, path)


def _notes(result: Sweep) -> tuple[str, ...]:
    left = [f"Skipped: {layer_text(x.layer)} ({x.reason})." for x in result.left_out]
    failed = {f"Failed: {layer_text(c.layer)}. {c.failed}": None for c in result.cells if c.failed}
    return (*left, *failed)


def _map(result: Sweep) -> LayerMap:
    rows = [
        LayerMapRow(layer_text(layer), tuple(_cells(result, layer, cells)))
        for layer, cells in result.by_layer()
    ]
    columns = [column_title(result, n) or "whole layer" for n in range(len(result.columns))]
    return LayerMap(_heading(result), tuple(columns), tuple(reversed(rows)))


def _heading(result: Sweep) -> str:
    return f"By {result.axis}" if result.axis else "By layer"


def _cells(result: Sweep, layer: str, cells: Sequence[SweepCell | None]) -> list[LayerMapCell]:
    scale = sweep_scale(result)
    values = np.array([cell_value(result, cell) for cell in cells])
    letter = "d" if scale.diverging else "p"
    shares = scale.position(values)
    return [
        LayerMapCell(
            cell_text(result, cell),
            f"{letter}{round(float(share) * LEVELS)}" if np.isfinite(share) else "pnan",
            "" if cell is None else _details(result, cell),
        )
        for cell, share in zip(cells, shares, strict=True)
    ]


def _details(result: Sweep, cell: SweepCell) -> str:
    if cell.failed:
        return cell.failed
    lines = [cell.layer]
    if result.axis:
        lines.append(f"{result.axis} {result.columns[cell.column].name}")
    lines += [f"{name}: {number_text(cell.metric(name))}" for name in result.metrics]
    return "\n".join(lines)


VIEW: View[Sweep] = View(
    sweep_lines,
    filed_document("sweep"),
    write_sweep_page,
    lambda result, dpi: draw_sweep(result),
    (*possible_columns(), NOTE),
)
