"""One recorded run: forward, or forward and backward, or a whole step, with the user's changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hookscope.errors import HookError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import (
    check_single_thread,
    detach_clone,
    forward,
    preserve_model_state,
)
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.optimizer_step import OptimizerSpec, take_step
from hookscope.execution.prepare import Prepared
from hookscope.hooks.capture import Capture
from hookscope.hooks.edits.editor import Editor
from hookscope.hooks.interventions import backward_interventions, forward_interventions
from hookscope.hooks.ops.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.specs.record_kinds import ATTENTION, PARAM_GRAD
from hookscope.tensors.interrupts import signal_safe

_SWITCHED = "had switched it between train and eval mode"


@dataclass(frozen=True)
class RecordedRun:
    """What came of a run: the recording with the model's output, what was edited, what is told.

    ``gradients`` is None for a run without a backward pass; ``told`` is what the metadata say of
    the loss, a penalty, an optimizer and attention.
    """

    capture: Capture
    values: Editor
    gradients: Editor | None = None
    told: dict[str, Any] = field(default_factory=dict)


def run_forward(
    prepared: Prepared, kinds: Iterable[str], max_bytes: int | None = None
) -> RecordedRun:
    """Run the model once and record values, those of edited layers before and after.

    Raises:
        ForwardError: the model raised.
        HookError: a hook of the user's own raised; carries what had been recorded.
        CheckFailed: more than ``max_bytes`` would be recorded.
        EditError: an edit does not fit its layer, or changed nothing.
    """
    recorder = Recorder(prepared.module, prepared.layers, kinds, max_bytes=max_bytes)
    changed = forward_interventions(
        prepared.plan, prepared.module, prepared.seed, recorder, keep=True
    )
    guard = preserve_model_state(prepared.module, train=prepared.train, seed=prepared.seed)
    with (
        explain_forward_errors(prepared),
        _carrying(recorder),
        guard as switched,
        signal_safe(torch.no_grad()),
        changed as values,
        recorder as shot,
        record_ops(recorder) as attention,
    ):
        shot.output = detach_clone(forward(prepared, recorder.capture))
    check_single_thread(recorder, _SWITCHED if switched else "")
    values.check_effect()
    told = {"attention": attention} if ATTENTION in recorder.kinds else {}
    return RecordedRun(shot, values, told=told)


def run_backward(
    prepared: Prepared, kinds: Iterable[str], measure: Objective, max_bytes: int | None = None
) -> RecordedRun:
    """Run the model and a loss backward and record gradients, edited ones before and after.

    Raises:
        LossError: the loss or its target does not fit the output.
        ForwardError, HookError, CheckFailed, EditError: as for ``run_forward``, and going back.
    """
    recorder = Recorder(
        prepared.module,
        prepared.layers,
        kinds,
        model_input=True,
        max_bytes=max_bytes,
        clones=measure.penalty is not None,
    )
    return _both_ways(prepared, recorder, lambda: differentiate(prepared, recorder, measure))


def run_step(
    prepared: Prepared, measure: Objective, rule: OptimizerSpec, max_bytes: int | None = None
) -> RecordedRun:
    """Run the model and a loss backward, and one step of an optimizer; put the parameters back.

    Raises:
        RequestError: nothing can be stepped, or torch refuses an argument.
        LossError, ForwardError, HookError, CheckFailed, EditError: as for ``run_backward``.
    """
    recorder = Recorder(prepared.module, prepared.layers, {PARAM_GRAD}, max_bytes=max_bytes)
    changes = "changed its parameters"
    work = partial(take_step, prepared, recorder, measure, rule)
    return _both_ways(prepared, recorder, work, changes)


def _both_ways(
    prepared: Prepared,
    recorder: Recorder,
    work: Callable[[], dict[str, Any]],
    changes: str = "",
) -> RecordedRun:
    """Do ``work``, which runs the model and a backward pass, with the plan in force.

    ``changes`` is what it changes in the model besides, for the error if another thread calls it.
    """
    plan, model, seed = prepared.plan, prepared.module, prepared.seed
    guard = preserve_model_state(model, train=prepared.train, seed=seed)
    with (
        explain_forward_errors(prepared),
        _carrying(recorder),
        guard as switched,
        signal_safe(torch.inference_mode(False)),
        signal_safe(torch.enable_grad()),
        forward_interventions(plan, model, seed, recorder) as values,
        recorder as found,
        record_ops(recorder),
        backward_interventions(plan, model, seed, recorder) as gradients,
    ):
        told = work()
        found.output = detach_clone(found.output)
    check_single_thread(recorder, changes or (_SWITCHED if switched else ""))
    for editor in (values, gradients):
        editor.check_effect()
    return RecordedRun(found, values, gradients, told)


@contextmanager
def _carrying(recorder: Recorder) -> Iterator[None]:
    """Let an error in a hook of the user's own carry what had been recorded before it."""
    try:
        yield
    except HookError as error:
        error.capture = recorder.capture
        raise
