"""Ends a script at the first NaN or infinity, with the layer's call in a capture."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookscope.errors import HookscopeError
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import GONE, Layer, WeakLayer
from hookscope.hooks.module_call import RecordKey, what_of
from hookscope.hooks.torch_state import inside_backward
from hookscope.results.failure import NAN as NAN_GRADIENT
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import INPUT, INPUT_GRAD, OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.specs.watch_options import INF, NAN
from hookscope.stores.runs.run_info import RunEvent
from hookscope.tensors.nested import unreadable_reason, walk
from hookscope.tensors.torch_internals import is_tracing, top_saved_tensors_hooks
from hookscope.training.found_models import local_part
from hookscope.training.layer_measures import Guard, TrainingHooks, inside_encoder_layers
from hookscope.training.parameter_measures import NamedParameters, values_of
from hookscope.training.tensor_measures import (
    is_measurable,
    is_on_host,
    norm_of,
    norms_of,
    places_by_kind,
    unnoticed,
    version_of,
)

CAPTURE_FILE = "stopped.capture.safetensors"

FORWARD, BACKWARD, OPTIMIZER_STEP = "forward", "backward", "optimizer"
FAULTS: dict[str, Callable[[Tensor], Tensor]] = {NAN: torch.isnan, INF: torch.isinf}
_NAMES = {NAN: "NaN", INF: "infinity"}
Takers = list[tuple["weakref.ref[Call]", str]]  # calls that got a tensor, and its name there


class SeenTensor:
    """A tensor that a layer got or returned, which can be saved until it is overwritten."""

    __slots__ = ("_values", "_version", "kind", "what")

    def __init__(self, what: str, kind: str, tensor: Tensor) -> None:
        self.what, self.kind = what, kind
        with unnoticed():
            self._values = tensor.detach()  # has no part of the graph, and the same memory
        self._version = version_of(self._values)

    @property
    def values(self) -> Tensor | None:
        """The tensor, detached; None if it was overwritten, or its memory was released."""
        values = self._values
        is_same = version_of(values) == self._version
        return local_part(values) if is_same and not unreadable_reason(values) else None


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a layer in the current step."""

    layer: Layer
    number: int
    values: tuple[SeenTensor, ...] = ()


def seen_tensors(kind: str, value: object) -> list[tuple[SeenTensor, Tensor]]:
    """Return the tensors in the arguments (``input``) or the result (``output``) of a call."""
    return [(SeenTensor(what_of(kind, path), kind, tensor), tensor) for path, tensor in walk(value)]


class CallCapture:
    """A capture of a call, which has copies of the tensors and may be written later."""

    def __init__(self, model: str, step: int) -> None:
        self._capture = Capture()
        self._capture.metadata |= {"command": "run", "model": {"spec": model}, "step": step}

    def add(self, calls: Iterable[Call]) -> None:
        """Add the inputs and outputs of calls."""
        for call in calls:
            for value in call.values:
                if (tensor := value.values) is not None:
                    self.add_tensor(call, value.what, value.kind, tensor)

    def add_tensor(self, call: Call, what: str, kind: str, tensor: Tensor) -> None:
        """Add one tensor of a call; its values may change afterwards."""
        key = RecordKey(call.layer, max(call.number, 1), what, kind)
        with unnoticed():
            self._capture.put(local_part(tensor.detach()).clone(), **key.origin())

    def save(self, folder: Path) -> str:
        """Write the capture; return its name, or nothing if it is empty or cannot be written."""
        if not len(self._capture):
            return ""
        try:
            self._capture.save(folder / CAPTURE_FILE)
        except HookscopeError:
            return ""
        return CAPTURE_FILE


class TrainingStopped(SystemExit):
    """Ends the script as ``sys.exit(1)`` does: what it must clean up is cleaned up."""

    def __init__(self, event: RunEvent) -> None:
        super().__init__(1)
        self.event = event
        self.failure_kind = NAN_GRADIENT if event.phase == BACKWARD else ""


class _Infinity(NamedTuple):
    """An infinity that began in the output of a call, of which the loss may know nothing."""

    layer: Layer
    event: RunEvent
    capture: CallCapture

    def is_inside(self, layer: Layer) -> bool:
        """Whether it began in a module of ``layer``."""
        return any(module is self.layer.module for module in layer.module.modules())


def _is_bounded(values: Tensor) -> bool:
    """Whether all entries are finite, with one pass over the tensor; waits for the device once."""
    if not is_on_host(values):
        return math.isfinite(norm_of(values, math.inf).item())
    # Much faster on a CPU. A difference beyond the range of the dtype is looked at again.
    low, high = torch.aminmax(values)
    return math.isfinite((high - low).item())


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether parameters, or their gradients, are finite for sure; waits once for each device."""
    with unnoticed():
        values = [local_part(tensor.detach()) for tensor in tensors]
        norms = norms_of([values_of(tensor) for tensor in values if is_measurable(tensor)])
        # A norm is not finite if an entry is not, or if the squares are too large.
        kinds = ([norms[n] for n in chosen] for chosen in places_by_kind(norms))
        return all(bool(torch.stack(same).isfinite().all()) for same in kinds)


def _is_watched_now() -> bool:
    return not (torch.compiler.is_compiling() or is_tracing() or inside_backward())


class BadValueStop:
    """Looks at every output and every gradient there as it comes, and at parameters together.

    On a device, each look waits for it. Flags that are read at the end of a pass would name the
    same call, but its tensors may be overwritten by then, as by an in-place ReLU, or be gone.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        layers: Iterable[Layer],
        kinds: Iterable[str],
        folder: Path,
        guard: Guard,
    ) -> None:
        self._name = name
        self._layers = tuple(layers)
        self._kinds = [kind for kind in FAULTS if kind in kinds]
        self._folder = folder
        self._guard = guard
        self._parameters = NamedParameters(self._layers)
        self._hooks = TrainingHooks(model)
        self._gradient_hooks = TrainingHooks(model)
        self._numbers: dict[str, int] = {}
        self._batch: tuple[Call, ...] = ()  # the last call of the model, with its inputs
        # By the id of a tensor: itself, and the calls that got it, the innermost first.
        self._takers: dict[int, tuple[weakref.ref[Tensor], Takers]] = {}
        self._finite: WeakSet[Call] = WeakSet()  # whose gradient arrived and was finite
        self._first: tuple[Call, str, Tensor, str] | None = None  # the first bad gradient
        # By the key of a parameter: the gradient that was last looked at, and its version.
        self._known: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._infinite: _Infinity | None = None  # the first that may reach the loss
        self._contained: _Infinity | None = None  # the last that a layer has removed
        self._step = 0

    def attach(self) -> None:
        """Begin to look."""
        self._hooks.open()
        self._gradient_hooks.open()
        self._hooks.after_calls(self._layers, self._guard(self._after_call))
        # None is chosen where the model is compiled. A hook on an encoder layer changes its kernel.
        model = self._hooks.model
        if self._layers and model is not GONE and model not in inside_encoder_layers(model):
            self._hooks.before(model, self._guard(self._before_model))
        for _ in self._new_gradients():
            pass  # gradients that are there already belong to no watched backward pass

    def watches(self, model: nn.Module) -> bool:
        """Whether it looks at this model."""
        return model is self._hooks.model

    def detach(self) -> None:
        """Remove all hooks."""
        self._hooks.close()
        self._gradient_hooks.close()

    def begin_step(self, step: int) -> None:
        """Forget the step before."""
        self._step = step
        self._numbers.clear()
        self._infinite = self._contained = None
        self._batch = ()
        self._forget_calls()

    def _forget_calls(self) -> None:
        self._takers.clear()
        self._finite.clear()
        self._first = None
        self._gradient_hooks.close()
        self._gradient_hooks.open()

    def _before_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _is_watched_now():
            seen = tuple(value for value, _ in seen_tensors(INPUT, (args, kwargs)))
            self._batch = (Call(WeakLayer(ROOT, module), 1, seen),)

    def _after_call(
        self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        if not _is_watched_now():
            return
        number = self._numbers[layer.name] = self._numbers.get(layer.name, 0) + 1
        inputs = seen_tensors(INPUT, (args, kwargs))
        outputs = seen_tensors(OUTPUT, output)
        call = Call(layer, number, tuple(value for value, _ in (*inputs, *outputs)))
        got = [tensor for _, tensor in inputs]
        is_finite = True
        # What it got and returned lives as long as the graph, which keeps most of it itself, unless
        # backward's tensors are saved elsewhere, as with checkpoints.
        kept = call if top_saved_tensors_hooks(True) is None else replace(call, values=())
        for value, tensor in outputs:
            if fault := self._fault_of(tensor):
                is_finite = False
                self._judge_output(call, value.what, fault, got)
            if tensor.requires_grad:
                on_gradient = partial(self._on_gradient, kept, value.what, self._takers_of(tensor))
                self._gradient_hooks.listen(tensor, self._guard(on_gradient))
        if is_finite:
            self._note_removal(layer, got)
        if any(tensor.requires_grad for _, tensor in outputs):
            for value, tensor in inputs:
                self._takers_of(tensor).append((weakref.ref(kept), value.what))

    def _note_removal(self, layer: Layer, inputs: Iterable[Tensor]) -> None:
        """Note that an infinity is gone, if there is one in the inputs or in a part of a layer."""
        began = self._infinite
        if began and (began.is_inside(layer) or any(map(self._fault_of, inputs))):
            self._contained, self._infinite = began, None

    def _judge_output(self, call: Call, what: str, fault: str, inputs: Iterable[Tensor]) -> None:
        before = next(filter(None, map(self._fault_of, inputs)), "")
        message = f"{_NAMES[fault]} in {what}"
        if fault == INF:
            # It may be a mask, which a softmax removes: the loss is judged.
            if not before and self._infinite is None:
                event = self._event(call, fault, FORWARD, message)
                self._infinite = _Infinity(call.layer, event, self._capture_of(call))
            return
        if before == INF and self._infinite is not None:
            message += f", whose input has an infinity from {self._infinite.layer.title} already"
        elif before:
            name = "an infinity" if before == INF else "a NaN"
            message += f", whose input has {name} already: look at the data and at what runs before"
        self._stop(self._event(call, fault, FORWARD, message), self._capture_of(call))

    def _takers_of(self, tensor: Tensor) -> Takers:
        """The calls that got a tensor, each with its name there."""
        entry = self._takers.get(id(tensor))
        if entry is None or entry[0]() is not tensor:  # that one is gone, and its id used again
            entry = self._takers[id(tensor)] = weakref.ref(tensor), []
        return entry[1]

    def _on_gradient(self, call: Call, what: str, takers: Takers, gradient: Tensor | None) -> None:
        if self._first is not None or gradient is None:
            return
        if not (fault := self._fault_of(gradient)):
            self._finite.add(call)
            return
        # It comes from the call that got the tensor and has a finite gradient itself.
        for reference, name in takers:
            if (taker := reference()) is not None and taker in self._finite:
                call, what = taker, name
                break
        self._first = call, fault, gradient.detach().clone(), what

    def before_backward(self, loss: Tensor) -> None:
        """Stop if the loss is bad; ``loss`` is detached."""
        if not (fault := self._fault_of(loss)):
            self._infinite = self._contained = None
            return
        if began := self._infinite or self._contained:
            self._stop(began.event, began.capture)
        message = f"{_NAMES[fault]} in the loss; the outputs of watched layers are finite"
        event = RunEvent(self._step, fault, FORWARD, self._name, "", 0, message)
        self._stop(event, self._capture_of())

    def after_backward(self) -> None:
        """Stop if a gradient was bad in a backward pass whose loss was not scaled."""
        self.check_gradients()
        new = list(self._new_gradients())
        if not _are_finite([gradient for _, _, gradient in new]):
            for key, parameter, gradient in new:
                if fault := self._fault_of(local_part(gradient.detach())):
                    self._stop_at_parameter(key, BACKWARD, fault, "the gradient of", parameter)
        self._forget_calls()

    def _new_gradients(self) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
        """The gradients that were written since they were last looked at, of which keys."""
        for position, parameter in self._parameters.alive().items():
            key = self._parameters.keys[position]
            if (gradient := parameter.grad) is None:
                continue
            known, version = self._known.get(key), version_of(gradient)
            if known is None or known[0]() is not gradient or known[1] != version:
                self._known[key] = weakref.ref(gradient), version
                yield key, parameter, gradient

    def check_gradients(self) -> None:
        """Stop if a gradient at an output was bad."""
        if self._first is not None:
            call, fault, gradient, what = self._first
            capture = self._capture_of(call)
            kind = INPUT_GRAD if what.startswith(INPUT) else OUTPUT_GRAD
            capture.add_tensor(call, f"{what}.grad", kind, gradient)
            message = f"{_NAMES[fault]} in the gradient at {what}"
            self._stop(self._event(call, fault, BACKWARD, message), capture)

    def after_step(self, optimizer: Optimizer) -> None:
        """Stop if the optimizer made a weight bad."""
        own, parameters = self._parameters.of(optimizer), self._parameters.alive()
        if _are_finite([parameters[position] for position in own]):
            return
        for position in own:
            weight = parameters[position]
            if fault := self._fault_of(local_part(weight.detach())):
                key = self._parameters.keys[position]
                self._stop_at_parameter(key, OPTIMIZER_STEP, fault, "the new value of", weight)

    def _fault_of(self, tensor: Tensor) -> str:
        if not is_measurable(tensor):
            return ""
        with unnoticed():
            values = tensor.detach()
            if not values.is_complex() and values.layout is torch.strided and _is_bounded(values):
                return ""
            return next((kind for kind in self._kinds if bool(FAULTS[kind](values).any())), "")

    def _stop_at_parameter(
        self, key: str, phase: str, fault: str, where: str, parameter: nn.Parameter
    ) -> None:
        module, _, name = key.rpartition("/")
        place = Call(next(layer for layer in self._layers if layer.name == module), 0)
        capture = self._capture_of()
        capture.add_tensor(place, name, PARAM_GRAD, parameter)
        if parameter.grad is not None:
            capture.add_tensor(place, f"{name}.grad", PARAM_GRAD, parameter.grad)
        message = f"{_NAMES[fault]} in {where} {name}"
        self._stop(self._event(place, fault, phase, message), capture)

    def _event(self, call: Call, fault: str, phase: str, message: str) -> RunEvent:
        layer, number = call.layer.name, call.number
        return RunEvent(self._step, fault, phase, self._name, layer, number, message)

    def _capture_of(self, *calls: Call) -> CallCapture:
        """The batch and calls, as far as their tensors are still there."""
        capture = CallCapture(self._name, self._step)
        is_model = any(call.layer.module is self._hooks.model for call in calls)
        capture.add(calls if is_model else (*self._batch, *calls))
        return capture

    def _stop(self, event: RunEvent, capture: CallCapture) -> NoReturn:
        raise TrainingStopped(event._replace(file=capture.save(self._folder)))
