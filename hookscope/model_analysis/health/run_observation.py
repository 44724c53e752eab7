"""One forward and backward run of a model, observed without storing tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import ForwardError, LossError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward
from hookscope.execution.isolation import seeded
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import verify_output_unchanged
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import layers_of
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import SinkBase
from hookscope.results.records import Absent, Coverage, Record
from hookscope.sources.meta import meta_copy
from hookscope.specs.model_spec import ONNX
from hookscope.specs.tensor_key import INPUT, INPUT_GRAD, OP, OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.tensors.grad_mode import grad_mode, without_grad
from hookscope.tensors.nested import as_call, detach_clone, map_tensors, unreadable_reason, walk
from hookscope.tensors.tensor_stats import ZEROING, dense_real, unit_dims

# By the name of a function, or of a module's class in lower case.
BOUNDS: dict[str, tuple[float, float]] = {
    "sigmoid": (0, 1),
    "hardsigmoid": (0, 1),
    "tanh": (-1, 1),
    "hardtanh": (-1, 1),
    "softsign": (-1, 1),
    "relu6": (-math.inf, 6),  # its zeros count as those of a ReLU
}
SOFTMAX = {"softmax", "softmax2d"}

NAN, INF, MINUS_INF = "nan", "inf", "minus_inf"  # the fields that count them, too


VALUES = {INPUT, OP, OUTPUT}
GRADIENTS = {OUTPUT_GRAD, PARAM_GRAD}


@dataclass(frozen=True)
class Ratio:
    """A number of units, entries or rows out of all."""

    count: int
    of: int
    values: int
    indices: tuple[int, ...] = ()

    @property
    def share(self) -> float:
        """``count`` over ``of``, from 0 to 1."""
        return self.count / self.of if self.of else 0.0


@dataclass(frozen=True)
class TensorObservation:
    """The counts of one tensor."""

    kind: str
    module: str
    type: str
    call: int
    what: str
    dtype: str
    numel: int
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0
    dead: Ratio | None = None
    saturated: Ratio | None = None
    arguments: frozenset[str] = frozenset()

    @property
    def function(self) -> str:
        """Name of the function that returned an ``op``, without its number; else empty."""
        return self.what.partition(":")[0].rstrip("_") if self.kind == OP else ""

    @property
    def label(self) -> str:
        """The tensor's name within its module: ``output``, ``relu:2``, ``output, call 2``."""
        return self.what if self.call == 1 else f"{self.what}, call {self.call}"


class ObservationSink(SinkBase):
    """Observes values and keeps the statistics of gradients; stores no tensor."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin
        self.observations: list[TensorObservation] = []
        self._arguments: frozenset[str] = frozenset()

    def before_op(self, arguments: Sequence[Tensor], call: Any) -> None:
        """Observe what a function gets, which it may change in place."""
        self._arguments = nonfinite_kinds(arguments)

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Observe a tensor."""
        if not self.is_readable(key, tensor):
            return
        observation = observe_tensor(key, tensor, self.margin)
        if key.kind == OP:
            observation = replace(observation, arguments=self._arguments)
        self.observations.append(observation)

    def store_gradient(
        self, key: RecordKey, gradient: Tensor, weight_norm: float | None = None
    ) -> None:
        """Keep the statistics of a gradient."""
        if self.is_readable(key, gradient):
            origin = key.origin()
            self.capture.put(gradient, **origin, weight_norm=weight_norm, held=False)


@without_grad
def observe_tensor(slot: RecordKey, tensor: Tensor, margin: float) -> TensorObservation:
    """Return the counts of a tensor that is recorded as ``slot``."""
    layer = slot.layer
    values = dense_real(tensor.detach())
    measures: dict[str, Any] = {}
    if values.is_floating_point() and values.numel():
        measures = {**_count_nonfinite(values), **_measure_activation(slot, values, margin)}
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorObservation(
        slot.kind, layer.name, layer.type, slot.call, slot.what, dtype, tensor.numel(), **measures
    )


@without_grad
def nonfinite_kinds(tensors: Iterable[Tensor]) -> frozenset[str]:
    """Return which of NAN, INF and MINUS_INF are among the readable values of some tensors."""
    kinds: set[str] = set()
    for _, tensor in walk(list(tensors)):
        if not unreadable_reason(tensor):
            values = dense_real(tensor.detach())
            if values.is_floating_point() and values.numel():
                kinds |= {kind for kind, count in _count_nonfinite(values).items() if count}
    return frozenset(kinds)


def _count_nonfinite(values: Tensor) -> dict[str, int]:
    """The numbers of entries that are not finite; empty if all are finite."""
    if bool(torch.isfinite(values).all()):
        return {}
    return {
        NAN: int(torch.isnan(values).sum()),
        INF: int(torch.isposinf(values).sum()),
        MINUS_INF: int(torch.isneginf(values).sum()),
    }


def _measure_activation(slot: RecordKey, values: Tensor, margin: float) -> dict[str, Ratio]:
    """The dead and saturated share of an activation function's output, module or function."""
    type_name = slot.layer.type.lower()
    known = {*ZEROING, *BOUNDS, *SOFTMAX}
    if slot.kind == OUTPUT:
        name = type_name
    elif slot.kind == OP and type_name not in known:
        name = slot.what.partition(":")[0].rstrip("_")
    else:
        return {}
    measures: dict[str, Ratio] = {}
    if name in ZEROING:
        measures["dead"] = _dead_units(values)
    if name in BOUNDS:
        module = slot.layer.module
        low, high = BOUNDS[name]
        if name == type_name == "hardtanh":
            low, high = getattr(module, "min_val", low), getattr(module, "max_val", high)
        near = margin * (high - low if math.isfinite(low) else high)
        at_bound = (values >= high - near) | (values <= low + near)
        measures["saturated"] = Ratio(int(at_bound.sum()), values.numel(), 1)
    elif name in SOFTMAX:
        measures |= _saturated_rows(values, margin)
    return measures


def _dead_units(values: Tensor) -> Ratio:
    """Units that are zero everywhere; of two dimensions the one with the smaller share is taken."""
    alive = values != 0 if values.ndim else (values != 0).reshape(1)
    ratios = []
    for dim in unit_dims(alive.ndim):
        units = alive.movedim(dim, 0).flatten(1).any(1) if values.ndim > 1 else alive
        dead = tuple((~units).nonzero().flatten().tolist())
        per_unit = values.numel() // units.numel()
        ratios.append(Ratio(len(dead), units.numel(), per_unit, dead))
    return min(ratios, key=lambda ratio: ratio.share)


def _saturated_rows(values: Tensor, margin: float) -> dict[str, Ratio]:
    """Rows of a softmax in which one entry is close to 1."""
    for dim in (-1, min(1, values.ndim - 1)):
        if values.ndim and values.shape[dim] > 1:
            total = values.sum(dim, dtype=torch.float32)
            if bool(((total - 1).abs() < 0.05).all()):
                top = values.amax(dim)
                count = int((top >= 1 - margin).sum())
                return {"saturated": Ratio(count, top.numel(), values.shape[dim])}
    return {}


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
                    hooks.before(layer.module, lambda *_, name=layer.name: ran.add(name))
            copy(*args, **kwargs)
    return ran


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
    with (
        signal_safe(torch.inference_mode(False)),
        grad_mode(objective is not None),
        prepared.preserved(),
        recorder,
        record_ops(recorder),
    ):
        if objective is not None:
            return differentiate(prepared, recorder, objective)
        recorder.capture.output = forward(prepared, recorder.capture)
    return {}
