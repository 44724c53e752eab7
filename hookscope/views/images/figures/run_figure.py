"""Curves of training runs over their steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hookscope.files.words import plural
from hookscope.views.images.figures.canvas import (
    MARKERS,
    SERIES,
    WARNING,
    escape_text,
    finish_figure,
    new_figure,
    paper_style,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.run_panels import RunLine, RunPanel
from hookscope.views.text.small_curves import LOG_SPAN

_WIDTH, _HEIGHT = 7.0, 2.3  # inches of a panel
_MARKED = 40  # values that have a mark each
_LETTERS = 40  # of a label
_DASHES = ("-", "--", ":", "-.")  # from the seventh line on


def draw_run_panels(panels: Sequence[RunPanel], title: str, about: str, dark: bool) -> Drawing:
    """Draw the panels below each other, with one axis of steps.

    The vertical axis is logarithmic if all values are positive and the largest is 100 times the
    smallest. Steps with NaN or infinity have a mark at the upper edge.
    """
    with paper_style(dark):
        figure = _draw(panels, escape_text(title), escape_text(about))
    shows = (f"{panel.title}: {plural(len(panel.lines), 'curve')}" for panel in panels)
    return Drawing(figure, "curves", tuple(shows), dark)


def _draw(panels: Sequence[RunPanel], title: str, about: str) -> Figure:
    figure, _ = new_figure(_WIDTH, _HEIGHT * len(panels), title, about)
    rows = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, panel in zip(rows, panels, strict=True):
        for n, line in enumerate(panel.lines):
            _draw_line(axes, line, n)
        _scale(axes, panel)
        axes.set_title(escape_text(panel.title), loc="left")
        if panel.measure:
            axes.set_ylabel("\n".join(_halves(panel.measure)))
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, frameon=False)
    rows[-1].set_xlabel("step")
    rows[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
    return finish_figure(figure)


def _draw_line(axes: Axes, line: RunLine, n: int) -> None:
    finite = np.isfinite(line.values)
    values = np.where(finite, line.values, np.nan)
    is_sparse = len(line.steps) <= _MARKED
    axes.plot(
        line.steps,
        values,
        color=SERIES[n % len(SERIES)],
        linestyle=_DASHES[n // len(SERIES) % len(_DASHES)],
        linewidth=1.0,
        marker=MARKERS[n % len(MARKERS)] if is_sparse else "",
        markersize=2.5,
        label=escape_text(shorten_middle(line.label, _LETTERS)) if line.label else None,
    )
    if not finite.all():
        axes.plot(
            line.steps[~finite],
            np.ones(np.count_nonzero(~finite)),
            transform=axes.get_xaxis_transform(),
            color=WARNING,
            linestyle="none",
            marker="x",
            markersize=4,
            clip_on=False,
            label=f"not finite from step {int(line.steps[~finite][0]):,}",
        )


def _scale(axes: Axes, panel: RunPanel) -> None:
    values = np.concatenate([line.values for line in panel.lines])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() >= LOG_SPAN * values.min():
        axes.set_yscale("log")


def _halves(text: str) -> list[str]:
    """Break a text at a space near its middle, if it is longer than a panel is high."""
    if len(text) <= 24:
        return [text]
    spaces = [n for n, letter in enumerate(text) if letter == " "]
    middle = min(spaces, key=lambda n: abs(n - len(text) / 2), default=len(text))
    return [text[:middle], text[middle + 1 :]]
