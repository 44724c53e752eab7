"""Diagnoses the models of a program while they run: NaN, infinities, dead and saturated units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from hookscope.hooks.layers import GONE
from hookscope.hooks.module_call import RecordKey
from hookscope.model_analysis.health.model_health import sort_findings
from hookscope.model_analysis.health.parameter_report import inspect_parameters, parameter_findings
from hookscope.model_analysis.health.run_findings import (
    CheckContext,
    activation_findings,
    nonfinite_findings,
)
from hookscope.model_analysis.health.run_observation import (
    VALUES,
    ObservationSink,
    Ratio,
    RunObservation,
    TensorObservation,
)
from hookscope.results.health import Finding, Health
from hookscope.specs.checks import DEFAULT_THRESHOLDS, STEP_CHECKS
from hookscope.training.called_models import RootCall
from hookscope.training.hooked_models import CallGate, HookedModel, HookedModels
from hookscope.training.model_capture import ModelRecorder

MADE = tuple(STEP_CHECKS)


class CheckSink(ObservationSink):
    """Keeps counts of the chosen calls, and all of the first call with a NaN or an infinity.

    A unit is dead if it is zero in all calls. Saturated are as many entries as in the call that
    had most of them.
    """

    def __init__(self, gate: CallGate) -> None:
        super().__init__(DEFAULT_THRESHOLDS.margin)
        self._gate = gate
        self._merged: dict[tuple[str, str, int], TensorObservation] = {}
        self.first_fault: list[TensorObservation] = []

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Count the entries of a tensor of a chosen call."""
        if self._gate.is_open:
            super().store(key, tensor)

    def end_call(self) -> None:
        """Add what was counted in a call of the model to what was counted before."""
        seen, self.observations = self.observations, []
        if not self.first_fault and any(o.nan or o.inf or o.minus_inf for o in seen):
            self.first_fault = seen
        positions: Counter[tuple[str, str]] = Counter()
        for one in seen:
            if one.dead is None and one.saturated is None:
                continue
            positions[one.module, one.what] += 1
            one = replace(one, call=positions[one.module, one.what])
            place = one.module, one.what, one.call
            known = self._merged.get(place)
            self._merged[place] = one if known is None else merged(known, one)

    @property
    def activations(self) -> tuple[TensorObservation, ...]:
        """Return the activations of all calls together; ``call`` counts within one of them."""
        return tuple(self._merged.values())


def merged(one: TensorObservation, other: TensorObservation) -> TensorObservation:
    """Return two calls as one: its dead units are those that are dead in both."""
    dead = one.dead
    if dead is not None and other.dead is not None and dead.of == other.dead.of:
        both = tuple(sorted(set(dead.indices) & set(other.dead.indices)))
        dead = Ratio(len(both), dead.of, dead.values + other.dead.values, both)
    pair = [ratio for ratio in (one.saturated, other.saturated) if ratio is not None]
    return replace(one, dead=dead, saturated=max(pair, key=lambda r: r.share, default=None))


class CheckedModel(HookedModel):
    """A model whose chosen layers are checked."""

    def __init__(self, name: str, module: nn.Module, gate: CallGate) -> None:
        super().__init__(name, module, gate)
        self.sink = CheckSink(gate)
        self._report = inspect_parameters(GONE)

    @cached_property
    def observer(self) -> ModelRecorder:
        """The recorder whose values are counted."""
        return ModelRecorder(self.module, self.layers, VALUES, self.gate, self.sink)

    def end(self, call: RootCall, output: Any = None, *, failed: bool = False) -> None:
        """Add what was counted in a call."""
        super().end(call)
        self.sink.end_call()

    def note_state(self) -> None:
        """Look at the parameters, which are looked at again in the end if they are there."""
        super().note_state()
        self._report = inspect_parameters(self.module)

    def findings(self) -> Iterator[Finding]:
        """Yield what was found, with names that begin with the model's."""
        gone = self.module is GONE
        report = self._report if gone else inspect_parameters(self.module)
        report = replace(
            report,
            tensors=tuple(replace(one, name=f"{self.name}.{one.name}") for one in report.tensors),
        )
        for observations, find in (
            (tuple(self.sink.first_fault), nonfinite_findings),
            (self.sink.activations, activation_findings),
        ):
            run = RunObservation(observations)
            yield from find(CheckContext(run, report, DEFAULT_THRESHOLDS, checks=MADE))
        yield from parameter_findings(report, weights_from_file=True)


class ModelCheck(HookedModels[CheckedModel]):
    """Diagnoses the chosen layers of all models of a program."""

    def make(self, name: str, module: nn.Module) -> CheckedModel:
        """Return a model that will be checked."""
        return CheckedModel(name, module, CallGate(self.choice))

    def result(self, metadata: dict[str, Any]) -> Health:
        """Return the findings of all models."""
        found = [one for model in self.models.values() for one in model.findings()]
        limits = DEFAULT_THRESHOLDS.to_json()
        return Health(tuple(sort_findings(found, MADE)), MADE, {}, limits, metadata)
