"""What a recording keeps: clones of tensors, gradients as they arrive, and reasons for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.captures import Capture
from hookscope.errors import CheckFailed
from hookscope.hooks import HookSet
from hookscope.lending import alike
from hookscope.modules import Layer
from hookscope.records import Absent
from hookscope.tensors import walk

ESCAPES = "inside torch.func (vmap, grad), whose tensors must not leave it"


@dataclass(frozen=True, eq=False)  # two tensors of one name are still two places
class Slot:
    """Where a tensor goes: one that is here, or a gradient once it arrives.

    ``view`` marks the gradient at a tensor that shares its memory with another one.
    """

    layer: Layer
    call: int
    what: str
    kind: str
    view: bool = False


class Keeper:
    """Puts tensors into a capture while it is open, at once or when their gradient arrives.

    Args:
        hooks: where it listens to tensors.
        max_bytes: stop with CheckFailed once more than this has been kept.
        capture: where to put it; a new one if none is given.

    Attributes:
        capture: what was kept.
        absent: what was not, and why.
        waiting: places whose gradient has not come.
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
        self.waiting: dict[Slot, None] = {}
        self.open = False
        self.under_way = 0
        self._hooks = hooks
        self._bytes = 0
        self._backwards: dict[Tensor, int] = {}
        self._arrivals: dict[Slot, list[Tensor]] = {}

    def keep(self, slot: Slot, tensor: Tensor) -> None:
        """Keep a clone of a tensor.

        Raises:
            CheckFailed: that would be more than ``max_bytes``.
        """
        if escapes(tensor):
            self.miss(slot, ESCAPES)
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

    def _put(self, slot: Slot, tensor: Tensor, *, held: bool = True, **extra: Any) -> Tensor:
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

    def miss(self, slot: Slot, reason: str) -> None:
        """Tell why there is nothing for a place."""
        layer = slot.layer
        absent = Absent(layer.name, layer.type, slot.call, slot.what, slot.kind, reason)
        self.absent.append(absent)

    def listened(self, slot: Slot, tensor: Tensor) -> Tensor:
        """A clone that reports its gradient to ``slot``, or the tensor itself if none can come."""
        if not self.can_listen(slot, tensor):
            return tensor
        clone = alike(tensor)
        self.listen(slot, clone)
        return clone

    def can_listen(self, slot: Slot, tensor: Tensor) -> bool:
        """Whether a gradient can come to a tensor; if not, tell why."""
        reason = ""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            reason = "integer" if tensor.dtype is not torch.bool else "bool"
        elif escapes(tensor):
            reason = ESCAPES
        elif not torch.is_grad_enabled():
            reason = "computed without autograd"
        elif not tensor.requires_grad:
            reason = "nothing before it requires grad"
        if reason:
            self.miss(slot, reason)
        return not reason

    def listen(self, slot: Slot, tensor: Tensor) -> None:
        """Keep the gradient of a tensor once it arrives."""
        self._hooks.listen(tensor, partial(self._arrived, slot))
        self.waiting[slot] = None

    def _arrived(self, slot: Slot, grad: Tensor | None) -> None:
        """Keep a gradient; a second backward through the same graph adds, as ``.grad`` does."""
        if grad is None or not self.open or self.under_way:
            return
        parts = [(path, part.detach()) for path, part in walk(grad)]
        if slot in self._arrivals:
            for sum_, (_, part) in zip(self._arrivals[slot], parts, strict=True):
                sum_.add_(part.to_dense() if part.layout is not sum_.layout else part)
            return
        kept = self._arrivals[slot] = []
        for path, part in parts:
            what = ".".join((slot.what.removesuffix(".grad"), *path)) + ".grad"
            kept.append(self._put(Slot(slot.layer, slot.call, what, slot.kind), part))
        del self.waiting[slot]

    def listen_to_parameter(self, slot: Slot, parameter: Tensor, aliases: tuple[str, ...]) -> None:
        """Keep the gradient of each backward pass at a parameter, under the pass's number."""
        self._hooks.listen(parameter, partial(self._parameter_arrived, slot, parameter, aliases))
        self.waiting[slot] = None

    def _parameter_arrived(
        self, slot: Slot, parameter: Tensor, aliases: tuple[str, ...], grad: Tensor | None
    ) -> None:
        if grad is None or not self.open or self.under_way:
            return
        self.waiting.pop(slot, None)
        number = self._backwards[parameter] = self._backwards.get(parameter, 0) + 1
        wide = torch.promote_types(parameter.dtype, torch.float32)
        norm = float(torch.linalg.vector_norm(parameter.detach(), dtype=wide))
        numbered = Slot(slot.layer, number, slot.what, slot.kind)
        self._put(numbered, grad.detach(), aliases=aliases, weight_norm=norm)


def escapes(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a transform of ``torch.func``; see ``ESCAPES``."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)
