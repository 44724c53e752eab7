"""Runs a model forward and backward once, and tells what was seen on the way."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from hookscope.analysis.health.nonfinite_origin import TensorObservation
from hookscope.analysis.health.tensor_observation import ObservationSink
from hookscope.errors import ForwardError, LossError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import (
    detach_clone,
    forward,
    grad_mode,
    preserve_model_state,
    seeded,
    verify_output_unchanged,
)
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import layers_of
from hookscope.hooks.ops.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import HookSet
from hookscope.results.records import Absent, Coverage, Record
from hookscope.sources.meta import meta_copy
from hookscope.specs.record_kinds import INPUT, INPUT_GRAD, OP, OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.tensors.interrupts import signal_safe
from hookscope.tensors.nested import as_call, map_tensors

VALUES = {INPUT, OP, OUTPUT}
GRADIENTS = {OUTPUT_GRAD, PARAM_GRAD}


@dataclass(frozen=True)
class RunObservation:
    """What was seen of a run.

    Attributes:
        sights: of every tensor that passed, in order.
        gradients: records of gradients without tensors, in order of their arrival.
        absent: gradients that do not exist, and why.
        coverage: which modules ran.
        told: what the metadata tell of the loss.
        failure: the error that ended the run; None if it came to its end.
        no_backward: why there was no backward pass; empty if there was one.
    """

    sights: tuple[TensorObservation, ...]
    gradients: tuple[Record, ...] = ()
    absent: tuple[Absent, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    told: dict[str, Any] = field(default_factory=dict)
    failure: ForwardError | None = None
    no_backward: str = ""


def run_and_observe(
    prepared: Prepared, measure: Objective | None, *, own_loss: bool, margin: float
) -> RunObservation:
    """Run a model forward, and the loss backward unless ``measure`` is None; keep no tensor.

    A model that raises is no error here but something to be told.

    Args:
        prepared: the model and its input.
        measure: what is differentiated.
        resolve_custom_loss: whether the user chose the loss, so that one that does not fit is an error.
        margin: how near a bound an activation counts as at it.

    Raises:
        LossError: the loss that the user chose does not fit the output.
        CheckFailed: hooks change what the model returns.
    """
    kinds = VALUES | (GRADIENTS if measure else set())
    recorder = _recorder(prepared, kinds, margin, model_input=measure is not None)
    told: dict[str, Any] = {}
    failure: ForwardError | None = None
    no_backward = "" if measure else "--forward-only"
    output: Any = None
    try:
        with explain_forward_errors(prepared):
            told = _pass(prepared, recorder, measure)
        output = detach_clone(recorder.capture.output)
    except ForwardError as error:
        failure, no_backward = error, "the model raised"
    except LossError as error:
        if own_loss:
            raise
        no_backward = error.message.rstrip(".")
        output = detach_clone(recorder.capture.output)
    if failure is None:
        with grad_mode(measure is not None):
            verify_output_unchanged(
                prepared, output, excuse_noise=True, recorded=len(recorder.capture.records)
            )
    observer, found = recorder.sink, recorder.capture
    assert isinstance(observer, ObservationSink)
    return RunObservation(
        tuple(observer.sights),
        found.records,
        found.absent,
        found.coverage,
        told,
        failure,
        no_backward,
    )


def trace_gradients(prepared: Prepared, measure: Objective) -> tuple[Record, ...]:
    """Run once more and return the gradients at inputs too: only needed where one is not finite."""
    recorder = _recorder(prepared, {*GRADIENTS, INPUT_GRAD}, 0.0, model_input=True)
    with suppress(ForwardError, LossError):
        _pass(prepared, recorder, measure)
    return recorder.capture.records


def runs_in_training(prepared: Prepared, names: Iterable[str]) -> set[str]:
    """Which of the modules run in training mode, as far as a pass without values can tell."""
    ran: set[str] = set()
    with suppress(Exception):  # the copy is only asked, and may be unable to answer
        ghost = meta_copy(prepared.module).train()
        args, kwargs = as_call(map_tensors(prepared.value, lambda path, tensor: tensor.to("meta")))
        wanted = set(names)
        with HookSet(ghost) as hooks, seeded(ghost, prepared.seed), signal_safe(torch.no_grad()):
            for layer in layers_of(ghost):
                if layer.name in wanted:
                    hooks.before(layer.module, partial(_note, ran, layer.name))
            ghost(*args, **kwargs)
    return ran


def _note(ran: set[str], name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    ran.add(name)


def _recorder(prepared: Prepared, kinds: set[str], margin: float, *, model_input: bool) -> Recorder:
    return Recorder(
        prepared.module,
        prepared.layers,
        kinds,
        model_input=model_input,
        sink=partial(ObservationSink, margin=margin),
    )


def _pass(prepared: Prepared, recorder: Recorder, measure: Objective | None) -> dict[str, Any]:
    """Run the model within an open recording; return what the metadata tell of the loss."""
    guard = preserve_model_state(prepared.module, train=prepared.train, seed=prepared.seed)
    with (
        signal_safe(torch.inference_mode(False)),
        grad_mode(measure is not None),
        guard,
        recorder,
        record_ops(recorder),
    ):
        if measure is not None:
            return differentiate(prepared, recorder, measure)
        recorder.capture.output = forward(prepared, recorder.capture)
    return {}
