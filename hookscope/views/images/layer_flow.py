"""Values, gradients and updates layer by layer: one number for each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hookscope.errors import RequestError
from hookscope.results.records import Record
from hookscope.specs.patterns import ROOT, layer_text
from hookscope.specs.tensor_key import (
    ATTENTION,
    INPUT,
    OP,
    OUTPUT,
    PARAM_GRAD,
    PARAM_UPDATE,
    UNEDITED,
    WEIGHT,
)
from hookscope.views.images.figures.canvas import (
    MARKERS,
    SERIES,
    WARNING,
    add_legend,
    draw_gridlines,
    escape_text,
    finish_figure,
    label_inches,
    new_figure,
    shorten_middle,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUTPUTS, INPUTS, FUNCTIONS = "outputs", "inputs", "functions between modules"
WEIGHTS, BIASES, PARAMETERS, OTHERS = "weights", "biases", "other parameters", "others"
ORDER = (OUTPUTS, INPUTS, FUNCTIONS, WEIGHTS, BIASES, PARAMETERS, OTHERS)
LINKED = (OUTPUTS, INPUTS)  # series whose points are connected by a line

_ROW, _TALLEST, _LETTERS = 0.17, 16.0, 60  # inches of a row and of all; letters of a label
_LABEL = 0.13  # inches that a label needs
_WIDE_RATIO = 100.0  # from this ratio of numbers a linear axis hides the smaller ones


@dataclass(frozen=True)
class FlowPoint:
    """One tensor: its row, counted from the top, and its numbers; None without finite entries.

    ``value`` is a mean or a norm, ``spread`` the standard deviation for a mean. ``nonfinite`` says
    that there are NaN or infinite entries, which the numbers leave out.
    """

    row: int
    value: float | None
    spread: float | None = None
    nonfinite: bool = False


@dataclass(frozen=True)
class LayerFlow:
    """A panel: the names of its rows, the points of each series, and the order of the rows."""

    rows: tuple[str, ...]
    series: dict[str, tuple[FlowPoint, ...]]
    quantity: str
    norms: bool
    order: str = "in execution order"


def layer_flows(records: Iterable[Record], named: bool) -> tuple[LayerFlow, ...]:
    """Return a panel for the values, one for the gradients, one for the updates of a step.

    A row is one call of a module, the first at the top. Attention weights and values that an edit
    replaced are left out.
    """
    kept = [r for r in records if r.kind != ATTENTION and not r.kind.endswith(UNEDITED)]
    if not named and any(r.kind == OUTPUT for r in kept):
        kept = [r for r in kept if r.kind != INPUT]
    gradients = [r for r in kept if r.kind.endswith(".grad")]
    updates = [r for r in kept if r.kind == PARAM_UPDATE]
    weights = [r for r in kept if r.kind == WEIGHT]
    if weights:
        flow = _flow(weights, "weight: mean and standard deviation", False)
        return (replace(flow, order="in the order of the file"),)
    values = [r for r in kept if r not in gradients and r not in updates]
    flows = (
        (values, "value: mean and standard deviation", False),
        (_forward_order(gradients), "gradient: Euclidean norm", True),
        (updates, "update: Euclidean norm", True),
    )
    panels = tuple(_flow(group, quantity, norms) for group, quantity, norms in flows if group)
    if not panels:
        raise RequestError(
            "None of these tensors can be plotted layer by layer.",
            "Use --kind attention to plot attention weights.",
        )
    return panels


def _forward_order(records: Sequence[Record]) -> list[Record]:
    """Gradients in the order of the forward pass, which those of a step have already."""
    backward = any(r.kind != PARAM_GRAD for r in records)
    return list(reversed(records)) if backward else list(records)


def _flow(records: Sequence[Record], quantity: str, norms: bool) -> LayerFlow:
    # The output of a module determines its row: its input comes before its submodules run.
    first = sorted(records, key=lambda r: not r.kind.startswith(OUTPUT))
    returned = {_row(record): record for record in reversed(first)}
    rows: dict[str, int] = {}
    for record in records:
        if returned[_row(record)] is record:
            rows[_row(record)] = len(rows)
    series: dict[str, list[FlowPoint]] = {}
    for record in records:
        stats = record.stats
        value, spread = (stats.norm, None) if norms else (stats.mean, stats.std)
        point = FlowPoint(rows[_row(record)], value, spread, bool(stats.nan or stats.inf))
        series.setdefault(_series(record), []).append(point)
    ordered = sorted(series, key=lambda name: ORDER.index(name))
    points = {name: tuple(sorted(series[name], key=lambda p: p.row)) for name in ordered}
    return LayerFlow(tuple(rows), points, quantity, norms)


def _row(record: Record) -> str:
    """The name of a call; a parameter's gradient belongs to the first call of its module."""
    if record.module == ROOT and record.kind.startswith(INPUT):
        return "the model's input"
    again = record.call > 1 and record.kind not in (PARAM_GRAD, PARAM_UPDATE)
    name = layer_text(record.module)
    return f"{name}:{record.call}" if again else name


def _series(record: Record) -> str:
    if record.kind == WEIGHT:
        return {"weight": WEIGHTS, "bias": BIASES}.get(record.what, PARAMETERS)
    if record.kind in (PARAM_GRAD, PARAM_UPDATE):
        name = record.what.rpartition(".")[0]
        return {"weight": WEIGHTS, "bias": BIASES}.get(name, PARAMETERS)
    base = record.kind.removesuffix(".grad")
    return {OUTPUT: OUTPUTS, INPUT: INPUTS, OP: FUNCTIONS}.get(base, OTHERS)


def draw_flow(flows: Sequence[LayerFlow], title: str, about: str) -> Figure:
    """Draw each panel with the first layer at its top; norms are on a logarithmic scale."""
    heights = [min(max(len(flow.rows), 4) * _ROW, _TALLEST) + 0.8 for flow in flows]
    beside = label_inches(_row_name(name) for flow in flows for name in flow.rows)
    figure, _ = new_figure(5.5 + beside, sum(heights), title, about)
    panels = figure.subplots(len(flows), 1, squeeze=False, height_ratios=heights).flat
    for axes, flow, height in zip(panels, flows, heights, strict=True):
        _draw_series(axes, flow)
        _name_rows(axes, flow, height - 0.8)
        axes.set_xlabel(flow.quantity)
        draw_gridlines(axes, "x")
        if len(axes.get_legend_handles_labels()[1]) > 1:
            add_legend(axes)
    return finish_figure(figure)


def _draw_series(axes: Axes, flow: LayerFlow) -> None:
    dense = len(flow.rows) > _TALLEST / _ROW
    for i, (name, points) in enumerate(flow.series.items()):
        # A zero is not on a logarithmic scale; a tensor without finite entries has no value.
        kept = [p for p in points if p.value is not None and (p.value > 0 or not flow.norms)]
        axes.errorbar(
            [float(p.value or 0) for p in kept],
            [p.row for p in kept],
            xerr=None if flow.norms else [float(p.spread or 0) for p in kept],
            color=SERIES[i % len(SERIES)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=2 if dense else 3.5,
            # A line through weights of different kinds of layers means nothing.
            linestyle="-" if name in LINKED else "none",
            linewidth=0.8,
            elinewidth=0.7 if dense else 1.4,
            label=escape_text(name),
        )
    every = [point for points in flow.series.values() for point in points]
    if flow.norms and any(point.value for point in every):
        _make_logarithmic(axes, [p.value for p in every if p.value])
    elif not flow.norms:
        _make_symlog(axes, every)
    zeros = [p.row for p in every if flow.norms and p.value == 0]
    nonfinite = [p.row for p in every if p.nonfinite]
    for rows, edge, marker, label in (
        (zeros, 0, "x", "zero"),
        (nonfinite, 1, "*", "NaN or infinite"),
    ):
        if rows:
            axes.scatter(
                [edge] * len(rows),
                rows,
                marker=marker,
                color=WARNING,
                label=label,
                transform=axes.get_yaxis_transform(),
                clip_on=False,
                zorder=3,
            )


def _make_logarithmic(axes: Axes, norms: Sequence[float]) -> None:
    """Label the powers of ten; if there are few of them, also 2 and 5 times each."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if max(norms) < _WIDE_RATIO * min(norms):
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _make_symlog(axes: Axes, points: Sequence[FlowPoint]) -> None:
    """Make the axis logarithmic away from zero if one layer is far larger than the others."""
    sizes = [abs(p.value) + (p.spread or 0) for p in points if p.value is not None]
    if sizes and max(sizes) > _WIDE_RATIO * (middle := float(np.median(sizes))) > 0:
        axes.set_xscale("symlog", linthresh=middle)


def _row_name(name: str) -> str:
    return escape_text(shorten_middle(name, _LETTERS))


def _name_rows(axes: Axes, flow: LayerFlow, height: float) -> None:
    """Label as many rows as there is room for: each, every second, every fifth, and so on."""
    rows = flow.rows
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 10**9) if len(rows) * _LABEL <= height * s)
    at = list(range(0, len(rows), step))
    axes.set_yticks(at, [_row_name(rows[i]) for i in at])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_ylabel(flow.order + (f", one in {step} named" if step > 1 else ""))
