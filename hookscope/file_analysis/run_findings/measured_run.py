"""The curves of a run as the checks take them: by kind, in execution order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookscope.results.health import Finding
from hookscope.specs.checks import RunThresholds
from hookscope.stores.runs.run_info import RunEvent
from hookscope.stores.runs.series import SKIPPED, ExecutionOrder, Series, kind_of
from hookscope.stores.runs.training_run import Curve, TrainingRun


class Measured(NamedTuple):
    """Several series over the sampled steps."""

    series: tuple[Series, ...]
    values: NDArray[np.float32]
    present: NDArray[np.bool_]


class MeasuredRun:
    """A run and the thresholds that its curves are compared with."""

    def __init__(self, run: TrainingRun, thresholds: RunThresholds) -> None:
        self.run = run
        self.thresholds = thresholds
        self.steps = run.layers.steps
        self.order = ExecutionOrder(run.layers.series)
        self.loss = self.of_step("loss", "value")

    def of_step(self, key: str, measure: str) -> Curve | None:
        """Return a curve of the run as a whole; None if it was not measured."""
        series = Series("", key, measure)
        return self.run.steps.curve(series) if series in self.run.steps.series else None

    def layers(self, kind: str, measure: str, model: str | None = None) -> Measured:
        """Return the series of one kind and measure, of all models or of one."""
        table = self.run.layers
        chosen = [
            one
            for one in table.series
            if one.measure == measure and kind_of(one) == kind and model in (None, one.model)
        ]
        chosen.sort(key=self.order.place)
        return Measured(tuple(chosen), table.matrix(chosen), table.present(chosen))

    @property
    def models(self) -> list[str]:
        """Names of the models with sampled values."""
        return list(dict.fromkeys(series.model for series in self.run.layers.series))

    @cached_property
    def skipped_steps(self) -> NDArray[np.int64]:
        """The steps that the gradient scaler left out."""
        curve = self.of_step(SKIPPED.key, SKIPPED.measure)
        return np.zeros(0, np.int64) if curve is None else curve.steps[curve.values == 1]

    @cached_property
    def skipped_rows(self) -> NDArray[np.bool_]:
        """Shape (R,): whether the scaler left out the optimizer's step of a sampled step."""
        return np.isin(self.steps, self.skipped_steps)

    @property
    def stop(self) -> RunEvent | None:
        """What ``--stop-on`` ended the script at; None if it did not."""
        return next(iter(self.run.events), None)

    def finding(
        self,
        check: str,
        level: str,
        message: str,
        measured: float,
        threshold: float | None,
        step: int | None,
        *,
        series: Sequence[Series | RunEvent] = (),
        hint: str = "",
    ) -> Finding:
        """Return a finding at the layers of ``series``, the first of which it names."""
        layers = list(dict.fromkeys(map(_layer_of, series)))
        model, layer = layers[0] if layers else ("", "")
        if len(self.models) < 2:
            model = ""
        return Finding(
            check,
            level,
            layer,
            message,
            measured,
            threshold,
            hint,
            tuple(name for _, name in layers[1:]),
            step=None if step is None else int(step),
            model=model,
        )


def _layer_of(place: Series | RunEvent) -> tuple[str, str]:
    return place.model, place.layer if isinstance(place, RunEvent) else place.module
