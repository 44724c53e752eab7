"""What a recording keeps: clones of tensors, gradients as they arrive, and reasons for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hookscope.errors import CheckFailed
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer
from hookscope.hooks.registry import HookSet
from hookscope.results.records import Absent
from hookscope.tensors.nested import FUNCTORCH_REASON, is_functorch_tensor, unreadable_reason, walk
from hookscope.tensors.tensor_stats import euclidean_norm

VIEW_CHANGED = "a view that was changed in place: its gradient went on as that of another tensor"
TWICE = "the gradient of a pass that came after one with create_graph=True"

OnGradient = Callable[[Tensor | None], None]


@dataclass(frozen=True, eq=False)  # two tensors of one name are still two places
class RecordKey:
    """Where a tensor goes: one that is here, or a gradient once it arrives."""

    layer: Layer
    call: int
    what: str
    kind: str


class CaptureSink:
    """Puts tensors into a capture while it is open, at once or when their gradient arrives.

    Args:
        hooks: where it listens to tensors.
        max_bytes: stop with CheckFailed once more than this has been kept.
        capture: where to put it; a new one if none is given.

    Attributes:
        capture: what was kept.
        absent: what was not, and why.
        waiting: places whose gradient has not come.
        views: those of gradients at tensors that share their memory with another one.
        open: whether anything is kept now.
        under_way: calls of the model that are; a gradient that arrives meanwhile is one that the
            model takes for itself.
    """

    def __init__(
        self, hooks: HookSet, max_bytes: int | None, capture: Capture | None = None
    ) -> None:
        self.max_bytes = max_bytes
        self.capture = Capture() if capture is None else capture
        self.absent: list[Absent] = []
        self.waiting: dict[RecordKey, None] = {}
        self.views: set[RecordKey] = set()
        self.open = False
        self.under_way = 0
        self._hooks = hooks
        self._bytes = 0
        self._backwards: dict[Tensor, int] = {}
        self._differentiable: dict[RecordKey, bool] = {}  # and whether a later pass came
        self._arrivals: dict[RecordKey, list[Tensor | None]] = {}
        self._listeners = WeakTensorKeyDictionary()  # tensor to its version and its functions

    def keep(self, slot: RecordKey, tensor: Tensor) -> None:
        """Keep a clone of a tensor.

        Raises:
            CheckFailed: that would be more than ``max_bytes``.
        """
        if reason := unreadable_reason(tensor):
            self.mark_absent(slot, reason)
            return
        self._put(slot, tensor.detach())

    def _count(self, layer: Layer, tensor: Tensor) -> None:
        self._bytes += tensor.numel() * tensor.element_size()
        if self.max_bytes is not None and self._bytes > self.max_bytes:
            self.open = False  # the hooks that PyTorch calls even now would stop once more
            raise CheckFailed(
                f"Stopped at {layer.name}: more than {self.max_bytes:,} bytes would be recorded.",
                "Choose fewer layers with --layer, or raise --max-bytes.",
            )

    def _put(self, slot: RecordKey, tensor: Tensor, *, held: bool = True, **extra: Any) -> Tensor:
        """Put a clone into the capture, and return it; or its statistics alone if not ``held``."""
        if held:
            self._count(slot.layer, tensor)
            tensor = tensor.clone()
        extra.setdefault("aliases", slot.layer.aliases)
        self.capture.put(
            tensor,
            module=slot.layer.name,
            type=slot.layer.type,
            call=slot.call,
            what=slot.what,
            kind=slot.kind,
            held=held,
            **extra,
        )
        return tensor

    def mark_absent(self, slot: RecordKey, reason: str) -> None:
        """Tell why there is nothing for a place."""
        layer = slot.layer
        absent = Absent(layer.name, layer.type, slot.call, slot.what, slot.kind, reason)
        self.absent.append(absent)

    def can_listen(self, slot: RecordKey, tensor: Tensor) -> bool:
        """Whether a gradient can come to a tensor; if not, tell why."""
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
            self.mark_absent(slot, reason)
        return not reason

    def listen(self, slot: RecordKey, tensor: Tensor) -> None:
        """Keep the gradient of a tensor once it arrives."""
        self.on_gradient(tensor, self.expect(slot, tensor))

    def expect(self, slot: RecordKey, tensor: Tensor, *, has_view: bool = False) -> OnGradient:
        """Return a function that keeps the gradient of ``tensor``, as it is now, at ``slot``.

        ``has_view`` tells that part of it comes by way of a view that others know.
        """
        self.waiting[slot] = None
        if not has_view and not tensor._is_view():
            return partial(self._arrived, slot)
        self.views.add(slot)
        # What is changed in place goes on as the tensor that it is a view of: then what arrives
        # here comes from its uses before the change alone.
        alias = tensor.detach()
        return partial(self._arrived_at_view, slot, alias, alias._version)

    def on_gradient(self, tensor: Tensor, function: OnGradient) -> None:
        """Call ``function`` with the gradient of a tensor.

        Of several functions at one tensor, the last is called first: what was recorded later in
        the forward pass is recorded earlier in the backward pass.
        """
        version, functions = self._listeners.get(tensor, (None, []))
        if version != tensor._version:
            functions = []
            self._listeners[tensor] = tensor._version, functions
            self._hooks.listen(tensor, partial(_call_each, functions))
        functions.insert(0, function)

    def give_up(self, slot: RecordKey, reason: str) -> None:
        """Wait no longer for the gradient of a place."""
        if slot in self.waiting:
            del self.waiting[slot]
            self.mark_absent(slot, reason)

    def _arrived_at_view(
        self, slot: RecordKey, alias: Tensor, version: int, grad: Tensor | None
    ) -> None:
        if alias._version == version:
            self._arrived(slot, grad)
        elif self.open and not self.under_way:
            self.give_up(slot, VIEW_CHANGED)

    def _arrived(self, slot: RecordKey, grad: Tensor | None) -> None:
        """Keep a gradient; a second backward through the same graph adds, as ``.grad`` does."""
        if grad is None or not self.open or self.under_way:
            return
        if slot in self._differentiable:
            if not self._differentiable[slot]:
                self.mark_absent(slot, TWICE)
            self._differentiable[slot] = True
            return
        if torch.is_grad_enabled():
            self._differentiable[slot] = False
        parts = [(path, part.detach()) for path, part in walk(grad)]
        if slot in self._arrivals:
            for sum_, (_, part) in zip(self._arrivals[slot], parts, strict=True):
                if sum_ is not None:
                    _add_to(sum_, part)
            return
        kept = self._arrivals[slot] = []
        for path, part in parts:
            what = ".".join((slot.what.removesuffix(".grad"), *path)) + ".grad"
            place = RecordKey(slot.layer, slot.call, what, slot.kind)
            if reason := unreadable_reason(part):
                self.mark_absent(place, reason)
            kept.append(None if reason else self._put(place, part))
        self.waiting.pop(slot, None)

    def listen_to_parameter(
        self, slot: RecordKey, parameter: Tensor, aliases: tuple[str, ...]
    ) -> None:
        """Keep the gradient of each backward pass at a parameter, under the pass's number."""
        self._hooks.listen(parameter, partial(self._parameter_arrived, slot, parameter, aliases))
        self.waiting[slot] = None

    def _parameter_arrived(
        self, slot: RecordKey, parameter: Tensor, aliases: tuple[str, ...], grad: Tensor | None
    ) -> None:
        if grad is None or not self.open or self.under_way:
            return
        self.waiting.pop(slot, None)
        number = self._backwards[parameter] = self._backwards.get(parameter, 0) + 1
        numbered = RecordKey(slot.layer, number, slot.what, slot.kind)
        if reason := unreadable_reason(grad) or unreadable_reason(parameter):
            self.mark_absent(numbered, reason)
            return
        wide = torch.promote_types(parameter.dtype, torch.float32)
        norm = float(euclidean_norm(parameter.detach(), dtype=wide))
        if math.isinf(norm):  # beyond float32, in which the norm is taken where it fits
            norm = float(
                euclidean_norm(parameter.detach(), dtype=torch.promote_types(wide, torch.float64))
            )
        self._put(numbered, grad.detach(), aliases=aliases, weight_norm=norm)


class ShapeSink(CaptureSink):
    """Keeps tensors on the meta device too, for runs that are made for their shapes alone."""

    def keep(self, slot: RecordKey, tensor: Tensor) -> None:
        """Keep a clone of a tensor, or a tensor that has no values."""
        if tensor.is_meta and not is_functorch_tensor(tensor):
            self._put(slot, tensor.detach())
        else:
            super().keep(slot, tensor)


def _call_each(functions: list[OnGradient], grad: Tensor | None) -> None:
    for function in functions:
        function(grad)


def _add_to(total: Tensor, part: Tensor) -> None:
    """Add a gradient to one that is kept, in place; either may be sparse, as those of embeddings.

    PyTorch adds a sparse tensor to a dense one, but not the other way round.
    """
    if part.layout is not total.layout:
        dense = part.to_dense()
        part = dense if total.layout is torch.strided else dense.to_sparse(total.sparse_dim())
    total.add_(part)
