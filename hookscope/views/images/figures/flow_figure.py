"""``--kind flow``: mean and spread of values, and norms of gradients, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from hookscope.views.images.figures.canvas import (
    MARKERS,
    SERIES,
    WARNING,
    escape_text,
    finish_figure,
    label_inches,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.layer_flow import LINKED, FlowPoint, LayerFlow

_ROW, _TALLEST, _LETTERS = 0.17, 16.0, 60  # inches of a row and of all; letters of a label
_LABEL = 0.13  # inches that a label needs
_WIDE_RATIO = 100.0  # from this ratio of numbers a linear axis hides the smaller ones


def draw_flow(flows: Sequence[LayerFlow], title: str, about: str) -> Figure:
    """Draw each panel with the first layer at its top.

    Norms are on a logarithmic scale. A norm of zero has a cross at the left edge, and a tensor with
    NaN or infinite entries a mark at the right edge.
    """
    heights = [min(max(len(flow.rows), 4) * _ROW, _TALLEST) + 0.8 for flow in flows]
    beside = label_inches(_row_name(name) for flow in flows for name in flow.rows)
    figure, _ = new_figure(5.5 + beside, sum(heights), title, about)
    panels = figure.subplots(len(flows), 1, squeeze=False, height_ratios=heights).flat
    for axes, flow, height in zip(panels, flows, heights, strict=True):
        _draw_series(axes, flow)
        _name_rows(axes, flow, height - 0.8)
        axes.set_xlabel(flow.quantity)
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, frameon=False)
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
