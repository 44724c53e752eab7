"""One forward and backward run of a model, observed without storing tensors."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from hookscope.errors import ForwardError, LossError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import detach_clone, forward
from hookscope.execution.isolation import preserve_model_state, seeded
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import verify_output_unchanged
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import layers_of
from hookscope.hooks.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.model_analysis.health.tensor_observation import ObservationSink, TensorObservation
from hookscope.results.records import Absent, Coverage, Record
from hookscope.sources.meta import meta_copy
from hookscope.specs.model_spec import ONNX
from hookscope.specs.tensor_key import INPUT, INPUT_GRAD, OP, OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors

VALUES = {INPUT, OP, OUTPUT}
GRADIENTS = {OUTPUT_GRAD, PARAM_GRAD}


@dataclass(frozen=True)
class RunObservation:
    """The observations of a run."""

    observations: tuple[TensorObservation, ...]
    gradients: tuple[Record, ...] = ()
    absent: tuple[Absent, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    metadata: dict[str, Any] = field(default_factory=dict)
    failure: ForwardError | None = None
    no_backward: str = ""


def run_and_observe(
    prepared: Prepared, objective: Objective | None, *, chosen_loss: bool, margin: float
) -> RunObservation:
    """Run a model forward, and the loss backward unless ``objective`` is None; store no tensor.

    If the model raises, the observation has the error as ``failure``.
    """
    kinds = VALUES | (GRADIENTS if objective else set())
    recorder = _recorder(prepared, kinds, margin, model_input=objective is not None)
    metadata: dict[str, Any] = {}
    failure: ForwardError | None = None
    is_onnx = prepared.loaded.source == ONNX
    reason = "onnxruntime computes no gradients" if is_onnx else "--forward-only"
    no_backward = "" if objective else reason
    output: Any = None
    try:
        with explain_forward_errors(prepared):
            metadata = _run_model(prepared, recorder, objective)
        output = detach_clone(recorder.capture.output)
    except ForwardError as error:
        if isinstance(error.exception, SystemExit):  # the model asks for the end
            raise
        failure, no_backward = error, "the model raised"
    except LossError as error:
        if chosen_loss:
            raise
        no_backward = error.message.rstrip(".")
        output = detach_clone(recorder.capture.output)
    if failure is None:
        with grad_mode(objective is not None):
            verify_output_unchanged(
                prepared, output, excuse_noise=True, recorded=len(recorder.capture.records)
            )
    sink, capture = recorder.sink, recorder.capture
    assert isinstance(sink, ObservationSink)
    return RunObservation(
        tuple(sink.observations),
        capture.records,
        capture.absent,
        capture.coverage,
        metadata,
        failure,
        no_backward,
    )


def trace_gradients(prepared: Prepared, objective: Objective) -> tuple[Record, ...]:
    """Run again, and return all gradients, also those at inputs, after one was not finite."""
    recorder = _recorder(prepared, {*GRADIENTS, INPUT_GRAD}, 0.0, model_input=True)
    with suppress(ForwardError, LossError):
        _run_model(prepared, recorder, objective)
    return recorder.capture.records


def runs_in_training(prepared: Prepared, names: Iterable[str]) -> set[str]:
    """Return those of the modules that run in training mode, as far as a meta pass can show."""
    ran: set[str] = set()
    with suppress(Exception):  # some models cannot run on the meta device
        copy = meta_copy(prepared.module).train()
        args, kwargs = as_call(map_tensors(prepared.value, lambda path, tensor: tensor.to("meta")))
        wanted = set(names)
        with HookSet(copy) as hooks, seeded(copy, prepared.seed), grad_mode(False):
            for layer in layers_of(copy):
                if layer.name in wanted:
                    hooks.before(layer.module, partial(_add_name, ran, layer.name))
            copy(*args, **kwargs)
    return ran


def _add_name(ran: set[str], name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    ran.add(name)


def _recorder(prepared: Prepared, kinds: set[str], margin: float, *, model_input: bool) -> Recorder:
    return Recorder(
        prepared.module,
        prepared.layers,
        kinds,
        model_input=model_input,
        sink=ObservationSink(margin),
    )


def _run_model(
    prepared: Prepared, recorder: Recorder, objective: Objective | None
) -> dict[str, Any]:
    """Run the model while the recorder records; return the metadata about the loss."""
    guard = preserve_model_state(prepared.module, train=prepared.train, seed=prepared.seed)
    with (
        signal_safe(torch.inference_mode(False)),
        grad_mode(objective is not None),
        guard,
        recorder,
        record_ops(recorder),
    ):
        if objective is not None:
            return differentiate(prepared, recorder, objective)
        recorder.capture.output = forward(prepared, recorder.capture)
    return {}
