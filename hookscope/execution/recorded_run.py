"""Recorded runs: forward, forward and backward, or a whole step, with the user's interventions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from hookscope.errors import HookError
from hookscope.execution.backward_failures.model_explanation import (
    explain_backward_errors,
    explain_nonfinite,
)
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.optimizer_step import OptimizerSpec, take_step
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import describe_arguments, prompt_tokens
from hookscope.execution.trial_pass import CallOrder
from hookscope.execution.verification import check_single_thread
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.capture import Capture
from hookscope.hooks.early_stop import EarlyStop
from hookscope.hooks.edits.editor import Editor
from hookscope.hooks.interventions import backward_interventions, forward_interventions
from hookscope.hooks.layers import Layer
from hookscope.hooks.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import CaptureSink, PositionSink
from hookscope.results.records import Coverage
from hookscope.specs.command_options import CaptureOptions, may_stop
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import Request
from hookscope.specs.tensor_key import ATTENTION, PARAM_GRAD
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import detach_clone
from hookscope.tensors.recording_file import RecordingFile

_SWITCHED = "switched it between train and eval mode"


@dataclass(frozen=True)
class StopPoint:
    """Where a run ends: after the last calls of the selected layers."""

    order: CallOrder | None

    def calls(self, layers: Sequence[Layer]) -> dict[Layer, int]:
        """Return the number of the last call of each layer that runs; all have to return."""
        if self.order is None:
            return dict.fromkeys(layers, 1)
        known = self.order.calls
        return {layer: known[layer.name] for layer in layers if layer.name in known}

    def describe(self, coverage: Coverage, last: str) -> Coverage:
        """Return the coverage of a run that ended after the layer ``last``."""
        later = () if self.order is None else self.order.later
        return replace(
            coverage,
            stopped_after=last,
            not_run=later,
            calls_complete=self.order is not None and self.order.is_certain,
        )


def wants_stop(request: Request, options: CaptureOptions, prepared: Prepared) -> bool | None:
    """Return whether the run is to end early; None if it depends on what the run would do.

    Unless ``options.stop`` decides, it is not if something needs the output of the model.
    """
    if any(layer.name == ROOT for layer in prepared.layers):
        return False  # there is nothing after it
    if options.stop is not None:
        return options.stop
    shows_output = prepared.loaded.categories or prompt_tokens(prepared.loaded, prepared.value)
    return None if may_stop(request, options) and not shows_output else False


def find_stop_point(stop: bool | None, order: CallOrder | None) -> StopPoint | None:
    """Return where the run ends; None if the whole model runs."""
    known = order is not None and order.later and order.is_certain
    if stop or (stop is None and known):
        return StopPoint(order)
    return None


@dataclass(frozen=True)
class RecordedRun:
    """The result of a run."""

    capture: Capture
    values: Editor
    gradients: Editor | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def run_forward(
    prepared: Prepared,
    kinds: Iterable[str],
    max_bytes: int | None = None,
    *,
    stop: StopPoint | None = None,
    file: RecordingFile | None = None,
) -> RecordedRun:
    """Run the model once and record values, those of edited layers before and after the edit."""
    sink = _sink(prepared, max_bytes, file)
    recorder = Recorder(prepared.module, prepared.layers, kinds, sink=sink, caches=True)
    interventions = forward_interventions(
        prepared.interventions, prepared.module, prepared.seed, recorder, keep=True
    )
    early = EarlyStop(prepared.module, stop.calls(prepared.layers) if stop else {})
    with (
        explain_forward_errors(prepared),
        _attach_capture(recorder),
        prepared.preserved() as switched,
        grad_mode(False),
        interventions as values,
        recorder as capture,
        record_ops(recorder) as attention,
        early.passing(recorder.calls) if stop else nullcontext(),
    ):
        capture.output = detach_clone(forward(prepared, recorder.capture))
    if stop is not None and early.ended_after is not None:
        capture.coverage = stop.describe(capture.coverage, early.ended_after.name)
    check_single_thread(recorder, _SWITCHED if switched else "")
    values.check_effect()
    metadata: dict[str, Any] = {"attention": attention} if ATTENTION in recorder.kinds else {}
    if isinstance(sink, PositionSink):
        metadata["positions"] = sink.stored
    return RecordedRun(capture, values, metadata=metadata)


def _sink(prepared: Prepared, max_bytes: int | None, file: RecordingFile | None) -> CaptureSink:
    """The sink of a run, which stores only some positions if the layers were selected so."""
    if not prepared.positions:
        return CaptureSink(max_bytes, file)
    place = {
        **describe_arguments(prepared.loaded, prepared.value),
        "options": {"generate": prepared.generate},
    }
    return PositionSink(prepared.positions, place, max_bytes, file)


def run_backward(
    prepared: Prepared, kinds: Iterable[str], objective: Objective, max_bytes: int | None = None
) -> RecordedRun:
    """Run the model and a loss backward and record gradients, before and after their edits."""
    recorder = Recorder(
        prepared.module,
        prepared.layers,
        kinds,
        model_input=True,
        clones=objective.penalty is not None,
        sink=CaptureSink(max_bytes),
    )
    work = partial(differentiate, prepared, recorder, objective)
    return _run_with_backward(prepared, recorder, objective, work)


def run_step(
    prepared: Prepared, objective: Objective, optimizer: OptimizerSpec, max_bytes: int | None = None
) -> RecordedRun:
    """Run the model, a loss backward and one step of an optimizer; restore the parameters."""
    sink = CaptureSink(max_bytes)
    recorder = Recorder(prepared.module, prepared.layers, {PARAM_GRAD}, sink=sink)
    work = partial(take_step, prepared, recorder, objective, optimizer, max_bytes)
    return _run_with_backward(prepared, recorder, objective, work, "changed its parameters")


def _run_with_backward(
    prepared: Prepared,
    recorder: Recorder,
    objective: Objective,
    work: Callable[[], dict[str, Any]],
    change: str = "",
) -> RecordedRun:
    """Do ``work`` with the interventions; errors say the ``change`` that it makes in the model."""
    interventions, model, seed = prepared.interventions, prepared.module, prepared.seed
    with (
        explain_forward_errors(prepared),
        explain_backward_errors(prepared, objective),
        _attach_capture(recorder),
        prepared.preserved() as switched,
        signal_safe(torch.inference_mode(False)),
        grad_mode(True),
        forward_interventions(interventions, model, seed, recorder) as values,
        recorder as capture,
        record_ops(recorder),
        backward_interventions(interventions, model, seed, recorder) as gradients,
    ):
        metadata = work()
        capture.output = detach_clone(capture.output)
    check_single_thread(recorder, change or (_SWITCHED if switched else ""))
    for editor in (values, gradients):
        editor.check_effect()
    if failure := explain_nonfinite(prepared, objective, capture):
        metadata["failure"] = failure.to_json()
    return RecordedRun(capture, values, gradients, metadata)


@contextmanager
def _attach_capture(recorder: Recorder) -> Iterator[None]:
    """Attach what had been recorded to the error of a user hook."""
    try:
        yield
    except HookError as error:
        error.capture = recorder.capture
        raise
