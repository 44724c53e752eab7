"""Hooks on the layers of a model during one step: measures of outputs and of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn

from hookscope.hooks.hook_set import LastingHooks
from hookscope.hooks.layers import GONE, Layer
from hookscope.hooks.module_call import what_of
from hookscope.hooks.torch_state import inside_backward
from hookscope.results.records import key_of
from hookscope.specs.tensor_key import OUTPUT
from hookscope.stores.runs.series import Series
from hookscope.tensors.nested import walk
from hookscope.tensors.tensor_stats import ZEROING, unit_dims
from hookscope.tensors.torch_internals import is_tracing
from hookscope.training.state_measures import BatchHash
from hookscope.training.tensor_measures import (
    CallMeasure,
    GradientMeasure,
    OutputTotals,
    PendingValues,
    count_nonzero,
    is_measurable,
    measure,
    unnoticed,
    version_of,
)

if TYPE_CHECKING:
    from hookscope.training.output_sketches import OutputSketches

Guard = Callable[[Callable[..., None]], Callable[..., None]]


def inside_encoder_layers(model: nn.Module) -> set[nn.Module]:
    """Return PyTorch's transformer encoder layers in a model, and all modules in them."""
    return {
        inner
        for module in model.modules()
        if isinstance(module, nn.TransformerEncoderLayer)
        for inner in module.modules()
    }


class TrainingHooks(LastingHooks):
    """Hooks that stay for a step of a training.

    Handlers of signals are not replaced: they would be for a whole step, and Ctrl-C leaves only
    hooks behind, in a process that ends.
    """

    @property
    def is_complete(self) -> bool:
        """Whether the script has removed none of the hooks."""
        return all(handle.id in (handle.hooks_dict_ref() or ()) for handle in self._handles)

    def after_calls(self, layers: Iterable[Layer], function: Callable[..., None]) -> None:
        """Call ``function(layer, module, args, kwargs, output)`` after the calls of layers."""
        # In evaluation, PyTorch's encoder layer runs another kernel if no module in it has a hook.
        # So that it still does, these modules share a hook of the process, which gets no kwargs.
        inside = inside_encoder_layers(self.model)
        without_hook = {layer.key: layer for layer in layers if layer.module in inside}
        for layer in layers:
            if layer.key not in without_hook and layer.module is not GONE:
                self.after(layer.module, partial(function, layer))

        def after_any(module: nn.Module, args: Any, output: Any) -> None:
            if (layer := without_hook.get(ref(module))) is not None:
                function(layer, module, args, {}, output)

        if without_hook:
            self.after_any(after_any)


class LayerHooks:
    """The hooks on the layers of a model, which measure in the steps that are sampled."""

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
        self._layers = tuple(layers)
        self._may_be_dead = {layer.name for layer in self._layers if _may_be_dead(layer)}
        self._guard = guard
        self._gradients = gradients
        self._is_trained = is_trained
        self.was_evaluated = False
        self._hooks = TrainingHooks(model)
        self._is_attached = False
        self._measures: LayerMeasures | None = None

    def begin(
        self, pending: PendingValues, sketches: OutputSketches | None = None
    ) -> LayerMeasures:
        """Measure the calls of a step; the numbers go to ``pending``."""
        self.end()
        return self.begin_part(pending, sketches)

    def begin_part(
        self, pending: PendingValues, sketches: OutputSketches | None = None
    ) -> LayerMeasures:
        """Measure the calls of a part of a step; the part before it may still get gradients."""
        if not self._hooks.is_complete:  # as module._forward_hooks.clear() does
            self.detach()
        if not self._is_attached:
            self._is_attached = True
            self._hooks.open()
            self._hooks.after_calls(self._layers, self._guard(self._after_call))
        self._measures = LayerMeasures(
            self.name, self._hooks.model, pending, self._guard, gradients=self._gradients
        )
        self._measures.sketches = sketches
        return self._measures

    def end(self) -> None:
        """End the measuring of a step; hooks stay for the next one."""
        if self._measures is not None:
            self._measures.end()
            self._measures = None

    def follow_others(self, model: nn.Module) -> None:
        """Let the hooks run after those that were put into the model since."""
        if self._is_attached and model is self._hooks.model:
            self._hooks.close()
            self._hooks.open()
            self._hooks.after_calls(self._layers, self._guard(self._after_call))

    def detach(self) -> None:
        """Remove all hooks."""
        self.end()
        if self._is_attached:
            self._is_attached = False
            self._hooks.close()

    def _after_call(
        self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        if self._measures is None or torch.compiler.is_compiling() or is_tracing():
            return
        if not (self._hooks.model.training or torch.is_grad_enabled()) and self._is_trained():
            self.was_evaluated = True
            return
        with unnoticed():
            finds_units = layer.name in self._may_be_dead
            self._measures.after_call(layer, finds_units, (args, kwargs), output)


class LayerMeasures:
    """What the layers of a model returned in the calls of one step, and the gradients there."""

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
        self.hash = BatchHash()
        self.sketches: OutputSketches | None = None
        self._pending = pending
        self._gradients = gradients
        self._hooks = TrainingHooks(model)  # on tensors
        self._hooks.open()
        self._totals: dict[str, OutputTotals] = {}
        # Weak: the script frees its outputs, and the model that their graph keeps, when it wants.
        self._last: tuple[ref[Tensor] | None, int, CallMeasure | None] = None, 0, None
        # By key, where the first run of a checkpoint was without autograd: its gradients arrive at
        # the tensors of the second run.
        self._without_grad: dict[str, CallMeasure] = {}
        self._on_gradient = guard(self._measure_gradient)

    def end(self) -> None:
        """Remove the hooks on tensors."""
        self._hooks.close()
        self._last = None, 0, None
        self._without_grad.clear()

    def after_call(
        self, layer: Layer, finds_units: bool, arguments: object, output: object
    ) -> None:
        """Measure what a layer returned."""
        self.called = True
        recomputed = inside_backward()
        if layer.module is self._hooks.model and not recomputed:
            for series, size in batch_size(arguments).items():
                self.batch[series] = self.batch.get(series, 0.0) + size
            self.hash.add(self._pending, arguments)
        if self.sketches is not None and not recomputed:
            self.sketches.add(layer, output)
        if type(output) is Tensor:
            self._measure(_output_key(layer.name), output, finds_units, recomputed)
            return
        for path, tensor in walk(output, whole=True):
            key = key_of(layer.name, 1, what_of(OUTPUT, path))
            self._measure(key, tensor, finds_units, recomputed)

    def _measure(self, key: str, tensor: Tensor, finds_units: bool, recomputed: bool) -> None:
        if recomputed:  # by a checkpoint: its values are known
            if tensor.requires_grad and (known := self._without_grad.get(key)) is not None:
                self._watch_gradient(tensor, known)
            return
        if not is_measurable(tensor):
            return
        totals = self._totals.get(key)
        if totals is None:
            totals = self._totals[key] = OutputTotals()
        last, version, call = self._last
        if call is None or last is None or last() is not tensor or version != version_of(tensor):
            values = tensor.detach()
            call = CallMeasure(values.numel())
            call.add_to(totals)
            measure(self._pending, values, call)
            dims = unit_dims(values.ndim) if finds_units and values.ndim > 1 else ()
            self._pending.add(count_nonzero(values, dims), call.take_nonzero)
            self._last = ref(tensor), version_of(tensor), call
            if tensor.requires_grad:
                self._watch_gradient(tensor, call)
            else:
                self._without_grad[key] = call
        else:  # a module returned what its last child returned: it is measured once
            call.add_to(totals)

    def _watch_gradient(self, tensor: Tensor, call: CallMeasure) -> None:
        if self._gradients:
            self._hooks.listen(tensor, partial(self._on_gradient, GradientMeasure(call)))

    def _measure_gradient(self, receiver: GradientMeasure, gradient: Tensor | None) -> None:
        if gradient is None or not self.is_in_backward or not is_measurable(gradient):
            return
        with unnoticed():
            measure(self._pending, gradient.detach(), receiver)

    def join(self, later: LayerMeasures) -> None:
        """Add the numbers of a later part of the step, once those of both have arrived."""
        if self.sketches is not None and later.sketches is not None:
            self.sketches.join(later.sketches)
        for key, totals in later._totals.items():
            if key in self._totals:
                self._totals[key].join_outputs(totals)
            else:
                self._totals[key] = totals

    def values(self, scale: float, *, activations: bool) -> dict[Series, float]:
        """Return the numbers once they have arrived, in the order in which layers were called."""
        found: dict[Series, float] = {}
        for key, totals in self._totals.items() if activations else ():
            rms, largest, nonfinite, zeros, dead = _series(self.name, key)
            found[largest] = totals.largest
            found[nonfinite] = totals.nonfinite
            found[rms] = totals.norm / math.sqrt(totals.numel)
            found[zeros] = 1 - totals.nonzero / totals.numel
            if (share := totals.dead) is not None:
                found[dead] = share
        for key, totals in self._totals.items():
            gradients = totals.gradients
            if gradients.tensors:
                norm_at, largest_at, nonfinite_at = _gradient_series(self.name, key)
                found[nonfinite_at] = gradients.nonfinite
                found[norm_at] = gradients.norm / scale
                found[largest_at] = gradients.largest / scale
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


def batch_size(arguments: object) -> dict[Series, float]:
    """Return the samples of a batch, and its tokens if it has two dimensions of integers."""
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
