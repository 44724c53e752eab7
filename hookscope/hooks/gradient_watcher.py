"""Gradients that arrive at tensors and parameters, and those that have not arrived."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.tensor_sink import TensorSink
from hookscope.tensors.nested import (
    FUNCTORCH_REASON,
    is_functorch_tensor,
    unreadable_reason,
    walk,
)
from hookscope.tensors.tensor_stats import euclidean_norm

VIEW_CHANGED = "a view that was changed in place: its gradient arrives at another tensor"
TWICE = "the gradient of a backward pass after one with create_graph=True"

OnGradient = Callable[[Tensor | None], None]


@dataclass(eq=False, slots=True)
class GradientListener:
    """The functions that a watcher calls with the gradient of one version of a tensor."""

    watcher: GradientWatcher
    version: int
    functions: list[OnGradient]

    def __call__(self, gradient: Tensor | None) -> None:
        """Call each of them."""
        for function in self.functions:
            function(gradient)


class GradientWatcher:
    """Puts gradients into a sink when they arrive."""

    def __init__(self, hooks: HookSet, sink: TensorSink) -> None:
        self.waiting: dict[RecordKey, None] = {}
        self.views: set[RecordKey] = set()
        self.open_calls = 0
        self._hooks = hooks
        self._sink = sink
        self._backward_passes: dict[Tensor, int] = {}
        self._differentiable: dict[RecordKey, bool] = {}  # and whether a later pass came
        self._arrivals: dict[RecordKey, list[Tensor | None]] = {}

    @property
    def has_received(self) -> bool:
        """Whether a gradient has arrived."""
        return bool(self._arrivals or self._backward_passes)

    def can_watch(self, key: RecordKey, tensor: Tensor) -> bool:
        """Return whether a gradient can arrive at a tensor; if not, note why."""
        reason = ""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            reason = "integer" if tensor.dtype is not torch.bool else "bool"
        elif is_functorch_tensor(tensor):
            reason = FUNCTORCH_REASON
        elif not torch.is_grad_enabled():
            reason = "computed without autograd"
        elif not tensor.requires_grad:
            reason = "nothing before it requires grad"
        if reason:
            self._sink.mark_absent(key, reason)
        return not reason

    def watch(self, key: RecordKey, tensor: Tensor) -> None:
        """Record the gradient of a tensor once it arrives."""
        self.on_gradient(tensor, self.expect(key, tensor))

    def expect(self, key: RecordKey, tensor: Tensor, *, has_view: bool = False) -> OnGradient:
        """Return a function that records the gradient of ``tensor``, as it is now, under ``key``.

        With ``has_view`` a part of it arrives through a view that is used elsewhere.
        """
        self.waiting[key] = None
        if not has_view and not tensor._is_view():
            return partial(self._on_arrival, key)
        self.views.add(key)
        # After a change in place, autograd continues with the base of the view. The gradient that
        # arrives here is then only that of the uses before the change.
        alias = tensor.detach()
        return partial(self._on_arrival_at_view, key, alias, alias._version)

    def on_gradient(self, tensor: Tensor, function: OnGradient) -> None:
        """Call ``function`` with the gradient of a tensor.

        The last of several functions at one tensor is called first: what was recorded later in
        the forward pass is recorded earlier in the backward pass.
        """
        for listener in self._hooks.listeners_of(tensor):
            if (
                isinstance(listener, GradientListener)
                and listener.watcher is self
                and listener.version == tensor._version
            ):
                listener.functions.insert(0, function)
                return
        self._hooks.listen(tensor, GradientListener(self, tensor._version, [function]))

    def give_up(self, key: RecordKey, reason: str) -> None:
        """Stop waiting for a gradient."""
        if key in self.waiting:
            del self.waiting[key]
            self._sink.mark_absent(key, reason)

    def watch_parameter(self, key: RecordKey, parameter: Tensor, aliases: tuple[str, ...]) -> None:
        """Record the gradient of each backward pass at a parameter, under the pass's number."""
        self._hooks.listen(parameter, partial(self._on_parameter, key, parameter, aliases))
        self.waiting[key] = None

    def _on_arrival_at_view(
        self, key: RecordKey, alias: Tensor, version: int, gradient: Tensor | None
    ) -> None:
        if alias._version == version:
            self._on_arrival(key, gradient)
        elif self._sink.open and not self.open_calls:
            self.give_up(key, VIEW_CHANGED)

    def _on_arrival(self, key: RecordKey, gradient: Tensor | None) -> None:
        """Record a gradient; a second backward through the same graph adds, as ``.grad`` does."""
        if gradient is None or not self._sink.open or self.open_calls:
            return
        if key in self._arrivals and not self._sink.adds_gradients:
            return
        if key in self._differentiable:
            if not self._differentiable[key]:
                self._sink.mark_absent(key, TWICE)
            self._differentiable[key] = True
            return
        if torch.is_grad_enabled():
            self._differentiable[key] = False
        parts = list(walk(gradient)) if gradient.is_nested else [((), gradient)]
        if key in self._arrivals:
            for total, (_, part) in zip(self._arrivals[key], parts, strict=True):
                if total is not None:
                    _add_to(total, part.detach())
            return
        stored = self._arrivals[key] = []
        for path, part in parts:
            part_key = key
            if path:
                what = ".".join((key.what.removesuffix(".grad"), *path)) + ".grad"
                part_key = RecordKey(key.layer, key.call, what, key.kind)
            stored.append(self._sink.store_gradient(part_key, part.detach()))
        self.waiting.pop(key, None)

    def _on_parameter(
        self,
        key: RecordKey,
        parameter: Tensor,
        aliases: tuple[str, ...],
        gradient: Tensor | None,
    ) -> None:
        if gradient is None or not self._sink.open or self.open_calls:
            return
        self.waiting.pop(key, None)
        # The number of a backward pass, not of a call of the module.
        number = self._backward_passes[parameter] = self._backward_passes.get(parameter, 0) + 1
        numbered = RecordKey(key.layer, number, key.what, key.kind)
        if reason := unreadable_reason(gradient) or unreadable_reason(parameter):
            self._sink.mark_absent(numbered, reason)
            return
        wide = torch.promote_types(parameter.dtype, torch.float32)
        norm = float(euclidean_norm(parameter.detach(), dtype=wide))
        if math.isinf(norm):  # beyond float32, in which the norm is computed where it fits
            wide = torch.promote_types(wide, torch.float64)
            norm = float(euclidean_norm(parameter.detach(), dtype=wide))
        self._sink.store_gradient(numbered, gradient.detach(), aliases=aliases, weight_norm=norm)


def _add_to(total: Tensor, part: Tensor) -> None:
    """Add a gradient to a stored one, in place; either may be sparse, as those of embeddings.

    PyTorch adds a sparse tensor to a dense one, but not the other way round.
    """
    if part.layout is not total.layout:
        dense = part.to_dense()
        part = dense if total.layout is torch.strided else dense.to_sparse(total.sparse_dim())
    total.add_(part)
