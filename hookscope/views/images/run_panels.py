"""The curves of training runs on a picture: a panel for each measure, a line for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.run_summary import KeyCurves, read_key_curves
from hookscope.files.words import plural
from hookscope.stores.runs.series import MEASURES, Series
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.views.images.figures.canvas import (
    MARKERS,
    SERIES,
    WARNING,
    add_legend,
    draw_gridlines,
    escape_text,
    finish_figure,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing, paper_style
from hookscope.views.text.small_curves import LOG_SPAN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 24
# Without a KEY: the key and the measure of each panel.
_WHOLE = (("loss", "value"), ("gradients", "norm"), ("groups.0", "lr"))
_TITLES = {"gradients": "gradients of the model", "groups.0": "learning rate"}

_WIDTH, _HEIGHT = 7.0, 2.3  # inches of a panel
_MARKED = 40  # values that have a mark each
_LETTERS = 40  # of a label
_DASHES = ("-", "--", ":", "-.")  # from the seventh line on


@dataclass(frozen=True)
class RunLine:
    """One curve."""

    label: str
    steps: NDArray[np.int64]
    values: NDArray[np.float32]


@dataclass(frozen=True)
class RunPanel:
    """The curves of one key and measure."""

    title: str
    measure: str
    lines: tuple[RunLine, ...]


def run_panels(runs: Sequence[TrainingRun], keys: Sequence[str]) -> list[RunPanel]:
    """Return the panels of some keys, or those of the whole run."""
    found: dict[tuple[str, str], list[tuple[TrainingRun, str, Series]]] = {}
    for run in runs:
        for curves in _chosen(run, keys):
            for curve in curves.curves:
                at = curves.key, curve.series.measure
                if keys or at in _WHOLE:
                    found.setdefault(at, []).append((run, curves.model, curve.series))
    order = list(found) if keys else [at for at in _WHOLE if at in found]
    if not order:
        raise RequestError(
            f"{runs[0].folder} has no loss, gradient norm or learning rate to draw.",
            "Name a KEY; 'hookscope show' lists the layers.",
        )
    if len(order) > MAX_PANELS:
        raise RequestError(
            f"A picture has up to {MAX_PANELS} panels, and the keys have {len(order)} measures.",
            "Name fewer keys.",
        )
    return [_panel(at, found[at], len(runs) > 1) for at in order]


def _chosen(run: TrainingRun, keys: Sequence[str]) -> Iterator[KeyCurves]:
    names = {series.key for series in (*run.steps.series, *run.layers.series)}
    yield from read_key_curves(run, keys or [key for key, _ in _WHOLE if key in names])


def _panel(
    at: tuple[str, str], entries: Sequence[tuple[TrainingRun, str, Series]], several: bool
) -> RunPanel:
    key, measure = at
    of_whole = [entry for entry in entries if not entry[1]]
    if of_whole and key == "loss":  # beside it, that of each optimizer is a part
        entries = of_whole
    models = {model for _, model, _ in entries}
    lines = []
    for run, model, series in entries:
        parts = [run.folder.resolve().name] if several else []
        parts += [model] if len(models) > 1 else []
        curve = (run.steps if series in run.steps else run.layers).curve(series)
        lines.append(RunLine(" ".join(parts), curve.steps, curve.values))
    is_plain = measure in ("value", "lr")
    title = _TITLES.get(key, key if is_plain else f"{key}, {measure}")
    return RunPanel(title, "" if is_plain else MEASURES[measure], tuple(lines))


def draw_run_panels(panels: Sequence[RunPanel], title: str, about: str, dark: bool) -> Drawing:
    """Draw the panels below each other, with one axis of steps, and marks at NaN and infinity."""
    with paper_style(dark):
        figure = _draw(panels, escape_text(title), escape_text(about))
    shows = (f"{panel.title}: {plural(len(panel.lines), 'curve')}" for panel in panels)
    return Drawing(figure, "curves", tuple(shows), dark)


def _draw(panels: Sequence[RunPanel], title: str, about: str) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, _ = new_figure(_WIDTH, _HEIGHT * len(panels), title, about)
    rows = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, panel in zip(rows, panels, strict=True):
        for n, line in enumerate(panel.lines):
            _draw_line(axes, line, n)
        _scale(axes, panel)
        axes.set_title(escape_text(panel.title), loc="left")
        if panel.measure:
            axes.set_ylabel("\n".join(_halves(panel.measure)))
        draw_gridlines(axes)
        if axes.get_legend_handles_labels()[1]:
            add_legend(axes)
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
