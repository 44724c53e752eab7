"""The curves of the keys of a run that a user names: each with all its measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.errors import RequestError
from hookscope.results.result import Result
from hookscope.specs.tensor_key import WHOLE, choose_keys
from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import Curve, RunTable, TrainingRun


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
        found += [_curves(tables, model, key, group) for model, group in groups.items()]
    return found


def _curves(
    tables: dict[Series, RunTable], model: str, key: str, group: Sequence[Series]
) -> KeyCurves:
    return KeyCurves(model, key, tuple(tables[series].curve(series) for series in group))
