"""The curves of training runs on a picture: a panel for each measure, a line for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.runs.run_summary import KeyCurves, read_key_curves
from hookscope.stores.runs.series import MEASURES, Series
from hookscope.stores.runs.training_run import TrainingRun

MAX_PANELS = 24
# Without a KEY: the key and the measure of each panel.
_WHOLE = (("loss", "value"), ("gradients", "norm"), ("groups.0", "lr"))
_TITLES = {"gradients": "gradients of the model", "groups.0": "learning rate"}


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
