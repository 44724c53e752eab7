"""``--kind hist``: the distribution of values, one panel for each tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from hookscope.results.stats import Stats
from hookscope.views.images.figures.canvas import (
    SERIES,
    check_panel_count,
    escape_text,
    finish_figure,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.tensor_view import Bin

_WIDTH, _HEIGHT = 2.9, 2.1  # inches of a panel


@dataclass(frozen=True)
class ValueHistogram:
    """The histogram of one tensor, with its statistics and its name."""

    name: str
    histogram: tuple[Bin, ...]
    stats: Stats
    quantity: str


def draw_hist(tensors: Sequence[ValueHistogram], title: str, about: str) -> Figure:
    """Draw the histogram of each tensor; counts are on a logarithmic scale."""
    check_panel_count(len(tensors))
    columns = min(len(tensors), max(3, math.ceil(math.sqrt(len(tensors)))))
    rows = math.ceil(len(tensors) / columns)
    wide = _WIDTH if columns > 1 else 5.5
    figure, _ = new_figure(columns * wide, rows * _HEIGHT + 0.4, title, about)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, spread in zip(panels, tensors, strict=False):
        bins = spread.histogram
        axes.set_title(
            f"{escape_text(shorten_middle(spread.name, int(wide * 20)))}\n{_numbers(spread.stats)}"
        )
        axes.set_ylabel("entries")
        axes.set_xlabel(spread.quantity)
        if not bins:
            axes.text(0.5, 0.5, "no finite entry", ha="center", transform=axes.transAxes)
            continue
        for bin in bins:
            # A bin of one integer, or of entries that are all equal, has no width.
            no_width = bin.low == bin.high
            axes.bar(
                bin.low,
                bin.count,
                0.8 if no_width else bin.high - bin.low,
                align="center" if no_width else "edge",
                color=SERIES[0],
            )
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)  # otherwise a single entry would have no height
        axes.grid(axis="y")
        axes.set_axisbelow(True)
    for axes in panels[len(tensors) :]:
        axes.set_axis_off()
    return finish_figure(figure)


def _numbers(stats: Stats) -> str:
    parts = [] if stats.mean is None else [f"mean {stats.mean:.3g}, std {stats.std:.3g}"]
    parts += [f"{stats.zero_share:.0%} zeros"] if stats.zeros else []
    parts += [f"{stats.nan} NaN"] if stats.nan else []
    parts += [f"{stats.inf} infinite"] if stats.inf else []
    return ", ".join(parts)
