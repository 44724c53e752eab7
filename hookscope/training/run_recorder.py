"""Writes steps that have ended, once their numbers have arrived from the device, and shows them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from hookscope.file_analysis.run_findings.loss_curve import judge_spikes
from hookscope.files.words import percent_text
from hookscope.specs.checks import RunThresholds
from hookscope.specs.patterns import ROOT
from hookscope.specs.watch_options import ACTIVATIONS, DEAD, SPIKE, VANISHING, WatchOptions
from hookscope.stores.runs.run_info import LossRule, RunEvent, RunInfo, Status, Unwatched
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import (
    LAYERS,
    LOSS,
    OUTPUT,
    OUTPUT_GRAD,
    PARAMETER_GRAD,
    SKIPPED,
    STEPS,
    Series,
    kind_of,
)
from hookscope.training.bad_value_stop import TrainingStopped
from hookscope.training.step_record import StepRecord
from hookscope.training.watched_models import WatchedModel, WatchedModels
from hookscope.views.text.live_run import LiveView, MeasuredRow, make_snapshot

REFRESH_SECONDS = 0.25

THRESHOLDS = RunThresholds()
GRADIENT_NORM = ("gradients", "norm")  # key and measure
NOT_CALLED = (
    "its forward was called directly, a function took its weights, or torch.func transformed it"
)
NO_LOSS = "no backward() began at a single number"
NO_OPTIMIZER = "no optimizer of torch.optim was made"
NO_MODEL = "its parameters are in no module, as copies of weights are"
PROGRESS_SECONDS = 10  # between two writes of run.json


class LiveRows:
    """The last rows of both tables."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._rows: dict[str, deque[MeasuredRow]] = {
            STEPS: deque(maxlen=100),
            LAYERS: deque(maxlen=20),
        }
        self._last_update = -REFRESH_SECONDS

    def add_row(
        self, table: str, step: int, seconds: float, values: Mapping[Series, float]
    ) -> None:
        """Add a row, and show it unless the last one was shown a moment ago."""
        self._rows[table].append(MeasuredRow(step, seconds, values))
        now = time.monotonic()
        if now - self._last_update >= REFRESH_SECONDS:
            self._last_update = now
            self._view.update(make_snapshot(list(self._rows[STEPS]), list(self._rows[LAYERS])))

    def close(self) -> None:
        """Remove the view."""
        self._view.close()


class StopRules:
    """The rules that the user chose."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = frozenset(kinds)
        self._before: dict[Series, deque[float]] = {}  # the last values of each, for spikes
        self._times: dict[Series, int] = {}  # sampled steps in turn with a fault

    def judge(
        self, step: int, steps: Mapping[Series, float], layers: Mapping[Series, float]
    ) -> RunEvent | None:
        """Return what is wrong with a step, or None."""
        judges_spikes = SPIKE in self._kinds and not steps.get(SKIPPED)
        if judges_spikes and (event := self._spike(step, steps, layers)):
            return event
        for series, value in layers.items() if self._kinds & {DEAD, VANISHING} else ():
            kind, message = self._fault_of(series, value)
            self._times[series] = self._times.get(series, 0) + 1 if kind else 0
            if self._times[series] == THRESHOLDS.unused_window:
                phase = "backward" if series.key.endswith(".grad") else "forward"
                return RunEvent(step, kind, phase, series.model, series.module, 0, message)
        return None

    def _spike(
        self, step: int, steps: Mapping[Series, float], layers: Mapping[Series, float]
    ) -> RunEvent | None:
        """Judge the loss, and the gradient norm of each model."""
        if LOSS in steps and (rise := self._rise(LOSS, steps[LOSS])):
            return RunEvent(step, SPIKE, "forward", "", "", 0, f"a spike of the loss: {rise}")
        for series, value in layers.items():
            if series[1:] == GRADIENT_NORM and (rise := self._rise(series, value)):
                message = f"a spike of the gradient norm: {rise}"
                return RunEvent(step, SPIKE, "backward", series.model, "", 0, message)
        return None

    def _rise(self, series: Series, value: float) -> str:
        """What is said of a number far above the previous ones; empty if it is not."""
        if not math.isfinite(value):
            return ""
        values = self._before.setdefault(series, deque(maxlen=THRESHOLDS.spike_window))
        before = np.array([values], np.float64)
        values.append(value)
        [mean], [limit], [is_spike] = judge_spikes(before, np.array([value]), THRESHOLDS)
        if not is_spike:
            return ""
        limit = max(limit, mean + THRESHOLDS.spike_rise * abs(mean))
        return f"{value:.4g}, after a mean of {mean:.4g} (threshold {limit:.4g})"

    def _fault_of(self, series: Series, value: float) -> tuple[str, str]:
        """Which fault a number shows, and what is said of it; a NaN shows none."""
        # A bias before a normalization has a gradient near 0, and an unused weight has 0.
        limits = THRESHOLDS
        if DEAD in self._kinds and series.measure == "dead" and value >= limits.dead:
            share, limit = percent_text(value), f"{limits.dead:.0%}"
            return DEAD, f"{share} of units are zero for the whole batch (threshold {limit})"
        is_gradient = series.what == "weight.grad" and series.measure == "norm"
        if VANISHING in self._kinds and is_gradient and 0 < value < limits.floor:
            norm = f"{value:.3g} (threshold {limits.floor:g})"
            return VANISHING, f"the norm of {series.what} is {norm}"
        return "", ""


def recorded_gaps(
    models: WatchedModels,
    info: RunInfo,
    series: Collection[Series],
    last: Mapping[Series, float],
) -> Iterator[Unwatched]:
    """Yield what is missing in the record of some steps, with the likely reason."""
    if LOSS not in series:
        has_gradients = any(kind_of(one) == OUTPUT_GRAD for one in series)
        what = "the loss" if has_gradients else "the loss and gradients at outputs"
        yield {"what": what, "reason": NO_LOSS}
    if not info["optimizers"]:
        yield {"what": "updates and learning rates", "reason": NO_OPTIMIZER}
    for optimizer in info["optimizers"]:
        if not optimizer["models"]:
            yield {"what": f"updates of {optimizer['name']}", "reason": NO_MODEL}
    called = {(one.model, one.module) for one in series if kind_of(one) == OUTPUT}
    for model in models:
        for name in _uncalled(model, models, called, last):
            yield {"what": f"outputs of {name} of {model.name}", "reason": NOT_CALLED}


def _uncalled(
    model: WatchedModel,
    models: WatchedModels,
    called: Collection[tuple[str, str]],
    last: Mapping[Series, float],
) -> Iterator[str]:
    """The layers that have a gradient without a call, and the model itself if its layers were."""
    trained = {
        one.module
        for one, value in last.items()
        if one.model == model.name and kind_of(one) == PARAMETER_GRAD and value
    }
    is_in_use = any(name == model.name for name, _ in called)
    others = {weight for other in models if other is not model for weight in other.weights}
    if not is_in_use and model.weights & others:  # the template of a scripted or copied one
        return
    for layer in models.layers_with_hooks(model):
        has_run = is_in_use if layer.name == ROOT else layer.name in trained
        if has_run and (model.name, layer.name) not in called:
            yield layer.title


class RunRecorder:
    """Writes the rows of steps, and what is known of the run."""

    def __init__(
        self,
        options: WatchOptions,
        writer: RunWriter,
        models: WatchedModels,
        live: LiveRows | None,
    ) -> None:
        self.writer = writer
        self.lost: int | None = None
        self._activations = ACTIVATIONS in options.what
        self._rules = StopRules(options.stop_on)
        self._models = models
        self._live = live
        self._ended: list[StepRecord] = []  # whose numbers may not have arrived
        self._last_layers: Mapping[Series, float] = {}  # the last row of its table
        self._warned: set[str] = set()  # patterns
        self._began = time.perf_counter()
        self._last_write = time.monotonic()

    def add(self, record: StepRecord, rule: LossRule) -> None:
        """Write a step that has ended, and others before it, as soon as their numbers are there."""
        self.writer.info["loss"] = rule
        self._ended.append(record)
        self._write_arrived()

    def write_all(self) -> None:
        """Wait for the numbers of all steps, and write them."""
        for record in self._ended:
            record.wait()
        self._write_arrived()

    def write_info(self, steps: int) -> None:
        """Write ``run.json``, with the number of steps."""
        self._last_write = time.monotonic()
        info = self.writer.info
        info["seconds"] = time.perf_counter() - self._began
        info["steps"] = steps
        info["unwatched"] = list(self._models.unwatched)
        if steps:
            gaps = recorded_gaps(self._models, info, self.writer.series, self._last_layers)
            info["unwatched"] += gaps
        self.writer.write_run_info()

    def finish(self, status: Status, exit_status: int | None, steps: int) -> None:
        """Write what is in memory, and how the script ended."""
        self.close()
        self.writer.info["status"] = status
        self.writer.info["exit_status"] = exit_status
        self.write_info(steps)
        self.writer.flush()

    def close(self) -> None:
        """Remove the live view."""
        if self._live is not None:
            self._live.close()

    def _write_arrived(self) -> None:
        while self._ended and self._ended[0].has_arrived:
            record = self._ended.pop(0)
            steps, layers = record.step_row(), {}
            self._add_row(STEPS, record.step, steps)
            if self.lost is None and not math.isfinite(steps.get(LOSS, 0.0)):
                self.lost = record.step
            if record.is_sampled:
                layers = record.layer_row(activations=self._activations)
                self._add_row(LAYERS, record.step, layers)
                self._last_layers = layers
                self._note_models(record)
                self._write_fingerprints(record)
            if event := self._rules.judge(record.step, steps, layers):
                raise TrainingStopped(event)

    def _write_fingerprints(self, record: StepRecord) -> None:
        for model, sketches in record.sketches_of_models().items() if record.sketches else ():
            found = sketches.fingerprint(model, record.step, self.writer.info["versions"])
            self.writer.add_fingerprint(model, record.step, found)

    def _add_row(self, table: str, step: int, values: Mapping[Series, float]) -> None:
        seconds = time.perf_counter() - self._began
        self.writer.add_row(table, step, seconds, values)
        if self._live is not None:
            self._live.add_row(table, step, seconds, values)

    def _warn_of_patterns(self) -> None:
        """Say which patterns of layers match nothing in any model so far, once for each."""
        known = {entry["name"] for entry in self.writer.info["models"]}
        models = [model for model in self._models if model.name in known]
        for pattern in self._models.patterns:
            if pattern not in self._warned and all(pattern in one.unmatched for one in models):
                self._warned.add(pattern)
                near = next(filter(None, (one.near_names(pattern) for one in models)), "")
                names = " and ".join(one.name for one in models)
                text = f"warning: --layer {pattern} matches no layer of {names}. {near}"
                self.writer.warn(text.rstrip())

    def _note_models(self, record: StepRecord) -> None:
        models = self.writer.info["models"]
        before = len(models)
        owners = {name for entry in self.writer.info["optimizers"] for name in entry["models"]}
        known = {entry["name"] for entry in models}
        for model in self._models:
            if model.name in known or model.name not in record.called | owners:
                continue
            models.append(model.info)
            if not model.layers:
                self._models.note(f"layers of {model.name}", "--layer matches none of them")
        if len(models) > before:
            self._warn_of_patterns()
        if len(models) > before or time.monotonic() - self._last_write > PROGRESS_SECONDS:
            self.write_info(record.step + 1)
