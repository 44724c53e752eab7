"""What a run comes to: its last loss, and the last values of each layer with their trend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hookscope.errors import RequestError
from hookscope.results.result import Result
from hookscope.specs.tensor_key import WHOLE, choose_keys
from hookscope.stores.runs.series import LOSS, SKIPPED, ExecutionOrder, Series, choose_series
from hookscope.stores.runs.training_run import Curve, RunTable, TrainingRun

TREND_POINTS = 16


@dataclass(frozen=True)
class LayerSummary:
    """The last values of one layer; None for what was not measured.

    Where a layer has several outputs, these are the values of the first. Its parameter is
    ``weight`` if it has one of that name, else the first.
    """

    model: str
    layer: str
    type: str
    rms: float | None
    max: float | None
    zeros: float | None
    dead: float | None
    grad_norm: float | None
    weight_norm: float | None
    weight_grad_norm: float | None
    update_ratio: float | None
    nonfinite_from: int | None
    trend: tuple[float, ...]


@dataclass(frozen=True)
class RunSummary(Result):
    """A run with the summary of its layers.

    Attributes:
        run: the run.
        layers: a summary for each selected layer, in execution order.
        loss: the loss over the steps; None if none was seen.
        skipped: number of steps that a gradient scaler skipped; None without one.
    """

    view = "training_run.SUMMARY"

    run: TrainingRun
    layers: tuple[LayerSummary, ...]
    loss: Curve | None
    skipped: int | None = None

    @classmethod
    def of(cls, run: TrainingRun, layers: Sequence[str] = ()) -> RunSummary:
        """Summarize a run, and the layers that the patterns match; without any, all of them."""
        table = run.layers
        chosen = choose_series(layers, table.series, run.folder)
        types = {
            (model["name"], layer["name"]): layer["type"]
            for model in run.info["models"]
            for layer in model["layers"]
        }
        groups: dict[tuple[str, str], list[Series]] = {}
        for series in sorted(chosen, key=ExecutionOrder(table.series).place):
            if series.module:
                groups.setdefault((series.model, series.module), []).append(series)
        summaries = (
            _summarize(table, names, types.get(layer, "")) for layer, names in groups.items()
        )
        loss = run.steps.curve(LOSS) if LOSS in run.steps else None
        skipped = None
        if SKIPPED in run.steps:
            skipped = int(np.count_nonzero(run.steps.curve(SKIPPED).values))
        return cls(run, tuple(summaries), loss, skipped)

    def to_json(self) -> dict[str, Any]:
        """Return what the run returns, then the loss and a summary of each layer."""
        losses = None
        if self.loss is not None and len(self.loss.steps):
            losses = {
                "first": float(self.loss.values[0]),
                "last": float(self.loss.values[-1]),
                "step": int(self.loss.steps[-1]),
            }
        return {
            **self.run.to_json(),
            "loss": losses,
            "skipped_steps": self.skipped,
            "layer_values": [asdict(layer) for layer in self.layers],
        }


def _summarize(table: RunTable, names: Sequence[Series], type: str) -> LayerSummary:
    whats = list(dict.fromkeys(series.what for series in names))
    outputs = [what for what in whats if what.split(".")[0] == "output"]
    output = _first([what for what in outputs if not what.endswith(".grad")], "output")
    gradient = _first([what for what in outputs if what.endswith(".grad")], "output.grad")
    parameters = [what.partition(".")[0] for what in whats if what not in outputs]
    parameter = _first(parameters, "weight")
    by_name = {(series.what, series.measure): series for series in names}

    def last(what: str, measure: str) -> float | None:
        values = _values(table, by_name.get((what, measure)))
        return values[-1] if values else None

    trend = _values(table, by_name.get((output, "rms")))
    trend = trend or _values(table, by_name.get((f"{parameter}.grad", "norm")))
    return LayerSummary(
        model=names[0].model,
        layer=names[0].module,
        type=type,
        rms=last(output, "rms"),
        max=last(output, "max"),
        zeros=last(output, "zeros"),
        dead=last(output, "dead"),
        grad_norm=last(gradient, "norm"),
        weight_norm=last(parameter, "norm"),
        weight_grad_norm=last(f"{parameter}.grad", "norm"),
        update_ratio=last(f"{parameter}.update", "ratio"),
        nonfinite_from=_nonfinite_from(table, names),
        trend=tuple(thin_out(trend, TREND_POINTS)),
    )


def _first(whats: Sequence[str], preferred: str) -> str:
    return preferred if preferred in whats or not whats else whats[0]


def _values(table: RunTable, series: Series | None) -> list[float]:
    return [] if series is None else [float(value) for value in table.curve(series).values]


def _nonfinite_from(table: RunTable, names: Sequence[Series]) -> int | None:
    first = []
    for series in names:
        curve = table.curve(series)
        bad = ~np.isfinite(curve.values)
        if series.measure == "nonfinite":
            bad |= curve.values > 0
        first += curve.steps[bad][:1].tolist()
    return min(first, default=None)


def thin_out(values: Sequence[float], count: int) -> list[float]:
    """Return at most ``count`` of the values, evenly spaced, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[n] for n in np.linspace(0, len(values) - 1, count).round().astype(int)]


@dataclass(frozen=True)
class KeyCurves(Result):
    """All that was measured of one key of one model.

    Attributes:
        model: name of the model or the optimizer; empty for what belongs to the whole run.
        key: what was measured, such as ``conv1/weight.grad`` or ``loss``.
        curves: one for each measure.
    """

    view = "training_run.CURVES"

    model: str
    key: str
    curves: tuple[Curve, ...]

    def to_json(self) -> dict[str, Any]:
        """Return ``model``, ``key``, and ``measures``, each with its steps and values."""
        measures = {
            curve.series.measure: {"steps": curve.steps.tolist(), "values": curve.values.tolist()}
            for curve in self.curves
        }
        return {"model": self.model, "key": self.key, "measures": measures}


def read_key_curves(run: TrainingRun, selectors: Sequence[str]) -> list[KeyCurves]:
    """Return the curves of the keys that ``selectors`` select, in the order of the selectors."""
    tables = {series: table for table in (run.steps, run.layers) for series in table.series}
    keys = list(dict.fromkeys(series.key for series in tables))
    found: list[KeyCurves] = []
    for key, index in choose_keys(selectors, keys, run.folder):
        if index != WHOLE:
            raise RequestError(
                f"{key} of a run is a number in each step, which has no slice.",
                "Leave out the brackets.",
            )
        groups: dict[str, list[Series]] = {}
        for series in tables:
            if series.key == key:
                groups.setdefault(series.model, []).append(series)
        for model, group in groups.items():
            curves = tuple(tables[series].curve(series) for series in group)
            found.append(KeyCurves(model, key, curves))
    return found
