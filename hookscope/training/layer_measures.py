"""Hooks on the layers of a model during one step: measures of outputs and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookscope.analysis.health.tensor_observation import ZEROING
from hookscope.hooks.layers import Layer
from hookscope.hooks.registry import HookSet
from hookscope.hooks.tensor_sink import what_of
from hookscope.hooks.torch_state import inside_backward
from hookscope.results.records import key_of
from hookscope.results.runs.series import Series
from hookscope.specs.record_kinds import OUTPUT
from hookscope.tensors.nested import walk
from hookscope.tensors.threads import EveryThread
from hookscope.training.pending_values import PendingValues, Slot
from hookscope.training.tensor_measures import (
    ActivationMeasure,
    TensorMeasure,
    is_measurable,
    unnoticed,
    version_of,
)

Guard = Callable[[Callable[..., None]], Callable[..., None]]


def inside_encoder_layers(model: nn.Module) -> set[nn.Module]:
    """Return PyTorch's transformer encoder layers in a model, and all modules in them."""
    return {
        inner
        for module in model.modules()
        if isinstance(module, nn.TransformerEncoderLayer)
        for inner in module.modules()
    }


class TrainingHooks(HookSet):
    """Hooks that stay for a step of a training; compiled modules stay compiled.

    They are called for all threads: a script may make its model in one and train it in another.
    The handlers of signals are not replaced: that would be for the length of a step, and what is
    left behind after Ctrl-C is only hooks, in a process that ends.
    """

    keeps_compiled = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.threads = EveryThread()

    @property
    def is_complete(self) -> bool:
        """Whether the script has removed none of the hooks."""
        return all(handle.id in (handle.hooks_dict_ref() or ()) for handle in self._handles)

    def attach(self) -> None:
        """Begin to accept hooks."""
        self._enter()

    def after_calls(self, layers: Iterable[Layer], function: Callable[..., None]) -> None:
        """Call ``function(layer, module, args, kwargs, output)`` after the calls of layers.

        In evaluation, PyTorch's encoder layer runs another kernel if no module in it has a hook.
        So that it does so here, too, these modules share a hook of the whole process, which gets no
        kwargs.
        """
        inside = inside_encoder_layers(self.model)
        without_hook = {layer.module: layer for layer in layers if layer.module in inside}
        for layer in layers:
            if layer.module not in without_hook:
                self.after(layer.module, partial(function, layer))

        def after_any(module: nn.Module, args: Any, output: Any) -> None:
            if (layer := without_hook.get(module)) is not None:
                function(layer, module, args, {}, output)

        if without_hook:
            self.after_any(after_any)

    def detach(self) -> None:
        """Remove all hooks."""
        self._leave()


class LayerHooks:
    """The hooks on the layers of a model, which measure in the steps that are sampled.

    Args:
        name: of the model.
        model: the model, without wrappers.
        layers: which of its modules are measured; those in compiled code must not be among them.
        guard: makes a function that never raises into the script.
        gradients: whether the gradients of outputs are measured.
        is_trained: whether an optimizer has parameters of the model. Then it is not measured while
            it is evaluated, without gradients: that is no part of a step. A teacher is.

    Attributes:
        name: of the model.
        was_evaluated: whether calls were not measured for that reason.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        layers: Iterable[Layer],
        guard: Guard,
        *,
        gradients: bool,
        is_trained: Callable[[], bool],
    ) -> None:
        self.name = name
        self._model = model
        self._layers = tuple(layers)
        self._may_be_dead = {layer.name for layer in self._layers if _may_be_dead(layer)}
        self._guard = guard
        self._gradients = gradients
        self._is_trained = is_trained
        self.was_evaluated = False
        self._hooks = TrainingHooks(model)
        self._is_attached = False
        self._measures: LayerMeasures | None = None

    def begin(self, pending: PendingValues) -> LayerMeasures:
        """Measure the calls of a step; the numbers go to ``pending``."""
        self.end()
        if not self._hooks.is_complete:  # as module._forward_hooks.clear() does
            self.detach()
        if not self._is_attached:
            self._is_attached = True
            self._hooks.attach()
            self._hooks.after_calls(self._layers, self._guard(self._after_call))
        self._measures = LayerMeasures(
            self.name, self._model, pending, self._guard, gradients=self._gradients
        )
        return self._measures

    def end(self) -> None:
        """End the measuring of a step; hooks stay for the next one."""
        if self._measures is not None:
            self._measures.end()
            self._measures = None

    def detach(self) -> None:
        """Remove all hooks."""
        self.end()
        if self._is_attached:
            self._is_attached = False
            self._hooks.detach()

    def _after_call(
        self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        if self._measures is None or torch.compiler.is_compiling() or torch._C._is_tracing():
            return
        if not (self._model.training or torch.is_grad_enabled()) and self._is_trained():
            self.was_evaluated = True
            return
        with unnoticed():
            finds_units = layer.name in self._may_be_dead
            self._measures.after_call(layer, finds_units, (args, kwargs), output)


class LayerMeasures:
    """What the layers of a model returned in one step, and the gradients there.

    Several calls of a layer in one step, as with gradient accumulation, count as one: their squares
    and counts are added, and the largest magnitude of all is taken.

    Args:
        name: of the model.
        model: the model.
        pending: receives the numbers.
        guard: makes a function that never raises into the script.
        gradients: whether the gradients of outputs are measured.

    Attributes:
        name: of the model.
        called: whether a layer was called.
        is_in_backward: whether gradients that arrive are those of a backward pass of the training.
        batch: the size of the batch that the model was called with last.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        pending: PendingValues,
        guard: Guard,
        *,
        gradients: bool,
    ) -> None:
        self.name = name
        self.called = False
        self.is_in_backward = False
        self.batch: dict[Series, float] = {}
        self._model = model
        self._pending = pending
        self._guard = guard
        self._gradients = gradients
        self._hooks = TrainingHooks(model)  # on tensors
        self._hooks.attach()
        self._by_key: dict[str, list[ActivationMeasure]] = {}
        self._last: tuple[Tensor | None, int, ActivationMeasure | None] = None, 0, None
        self._without_grad: set[str] = set()

    def end(self) -> None:
        """Remove the hooks on tensors."""
        self._hooks.detach()
        self._last = None, 0, None

    def after_call(
        self, layer: Layer, finds_units: bool, arguments: object, output: object
    ) -> None:
        """Measure what a layer returned."""
        self.called = True
        recomputed = inside_backward()
        if layer.module is self._model and not recomputed:
            self.batch = batch_size(arguments)
        if type(output) is Tensor:
            self._measure(_output_key(layer.name), output, finds_units, recomputed)
            return
        for path, tensor in walk(output, whole=True):
            key = key_of(layer.name, 1, what_of(OUTPUT, path))
            self._measure(key, tensor, finds_units, recomputed)

    def _measure(self, key: str, tensor: Tensor, finds_units: bool, recomputed: bool) -> None:
        if recomputed:
            # A checkpoint runs a part again. Its values are known; if its first run was without
            # autograd, the gradients arrive at the tensors of the second one.
            if key in self._without_grad and tensor.requires_grad:
                self._watch_gradient(tensor, self._by_key[key][-1])
            return
        if not is_measurable(tensor):
            return
        last, version, measure = self._last
        if measure is None or last is not tensor or version != version_of(tensor):
            values = tensor.detach()
            unit_dims = _dimensions_of_units(values) if finds_units else ()
            measure = ActivationMeasure(self._pending, values, unit_dims)
            self._last = tensor, version_of(tensor), measure
            if tensor.requires_grad:
                self._watch_gradient(tensor, measure)
            else:
                self._without_grad.add(key)
        # Else a module returned what its last child returned: it is measured once.
        self._by_key.setdefault(key, []).append(measure)

    def _watch_gradient(self, tensor: Tensor, measure: ActivationMeasure) -> None:
        if self._gradients:
            self._hooks.listen(tensor, self._guard(partial(self._on_gradient, measure)))

    def _on_gradient(self, measure: ActivationMeasure, gradient: Tensor | None) -> None:
        if gradient is None or not self.is_in_backward or not is_measurable(gradient):
            return
        with unnoticed():
            measure.gradients.append(TensorMeasure(self._pending, gradient.detach()))

    def values(self, scale: float, *, activations: bool) -> dict[Series, float]:
        """Return the numbers once they have arrived, in the order in which layers were called.

        Args:
            scale: what the loss was multiplied by, for the gradients.
            activations: whether to return those of outputs beside those of their gradients.
        """
        found: dict[Series, float] = {}
        for key, measures in self._by_key.items() if activations else ():
            rms, largest, nonfinite, zeros, dead = _series(self.name, key)
            numel = sum(measure.numel for measure in measures)
            norm, found[largest], found[nonfinite] = _combine(measures)
            found[rms] = norm / math.sqrt(numel)
            alive = [_alive(slots) for slots in _by_dimension(measures)]
            found[zeros] = 1 - sum(_nonzero(m) for m in measures) / numel
            if alive:
                found[dead] = 1 - max(alive)
        for key, measures in self._by_key.items():
            gradients = [gradient for measure in measures for gradient in measure.gradients]
            if gradients:
                norm_at, largest_at, nonfinite_at = _gradient_series(self.name, key)
                norm, largest_gradient, found[nonfinite_at] = _combine(gradients)
                found[norm_at] = norm / scale
                found[largest_at] = largest_gradient / scale
        return found


@cache
def _series(model: str, key: str) -> tuple[Series, ...]:
    measures = ("rms", "max", "nonfinite", "zeros", "dead")
    return tuple(Series(model, key, measure) for measure in measures)


@cache
def _gradient_series(model: str, key: str) -> tuple[Series, ...]:
    return tuple(Series(model, f"{key}.grad", measure) for measure in ("norm", "max", "nonfinite"))


@cache
def _output_key(layer: str) -> str:
    return key_of(layer, 1, OUTPUT)


def _combine(measures: Sequence[TensorMeasure]) -> tuple[float, float, float]:
    """Norm, largest magnitude and number of non-finite entries of several tensors together."""
    bad = sum(measure.nonfinite.number() for measure in measures if measure.nonfinite is not None)
    bounds = [abs(slot.number()) for measure in measures for slot in (measure.low, measure.high)]
    largest = math.nan if any(map(math.isnan, bounds)) else max(bounds)
    if len(measures) == 1:
        return measures[0].norm.number(), largest, bad
    norm = math.sqrt(sum(measure.norm.number() ** 2 for measure in measures))
    return norm, largest, bad


def _nonzero(measure: ActivationMeasure) -> float:
    if measure.has_units:
        return float(measure.nonzero[0].numbers().sum())
    return measure.nonzero[0].number()


def _by_dimension(measures: Sequence[ActivationMeasure]) -> Iterator[tuple[Slot, ...]]:
    """The counts by unit of all calls, for each dimension that may be that of units."""
    counts = [measure.nonzero for measure in measures if measure.has_units]
    return zip(*counts, strict=False)


def _alive(slots: Sequence[Slot]) -> float:
    """The share of units that are not zero in some call; 1 if they are not the same units."""
    counts = [slot.numbers() for slot in slots]
    if len({len(count) for count in counts}) > 1:
        return 1.0
    total = counts[0] if len(counts) == 1 else np.sum(counts, axis=0)
    return np.count_nonzero(total) / len(total)


def batch_size(arguments: object) -> dict[Series, float]:
    """Return the size of a batch: its samples, and its tokens if it has two dimensions of integers.

    Args:
        arguments: those of the model; the first tensor in them is the batch.

    >>> batch_size((torch.zeros(8, 128, dtype=torch.long),)).values()
    dict_values([8.0, 1024.0])
    """
    tensor = next((tensor for _, tensor in walk(arguments)), None)
    if tensor is None or tensor.ndim == 0:
        return {}
    size = {Series("", "batch", "samples"): float(tensor.shape[0])}
    if tensor.ndim == 2 and not tensor.is_floating_point():
        size[Series("", "batch", "tokens")] = float(tensor.numel())
    return size


def _may_be_dead(layer: Layer) -> bool:
    """Whether units of a layer can be dead: of a ReLU, and of a module that may end in one."""
    return layer.type.lower() in ZEROING or not layer.leaf


def _dimensions_of_units(values: Tensor) -> tuple[int, ...]:
    """Three dimensions are batch, channel, length or batch, token, feature."""
    return {0: (), 1: (), 3: (1, 2)}.get(values.ndim, (1,))
