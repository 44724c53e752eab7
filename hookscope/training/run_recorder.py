"""Writes steps that have ended, once their numbers have arrived from the device."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hookscope.specs.watch_options import ACTIVATIONS, WatchOptions
from hookscope.stores.runs.run_info import LossRule, Status
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import LAYERS, LOSS, STEPS, Series
from hookscope.training.bad_value_stop import TrainingStopped
from hookscope.training.recorded_gaps import recorded_gaps
from hookscope.training.step_record import StepRecord
from hookscope.training.stop_rules import StopRules
from hookscope.training.watched_models import WatchedModels

if TYPE_CHECKING:
    from hookscope.training.live_rows import LiveRows

PROGRESS_SECONDS = 10  # between two writes of run.json


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
            if event := self._rules.judge(record.step, steps, layers):
                raise TrainingStopped(event)

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
