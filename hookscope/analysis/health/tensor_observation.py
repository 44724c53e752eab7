"""Looks at tensors as they pass, and keeps none of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hookscope.analysis.health.nonfinite_origin import Ratio, TensorObservation
from hookscope.hooks.registry import HookSet
from hookscope.hooks.tensor_sink import CaptureSink, RecordKey
from hookscope.specs.record_kinds import OP, OUTPUT
from hookscope.tensors.nested import unreadable_reason
from hookscope.tensors.tensor_stats import dense_real

# By the name of a function, or of a module's class in small letters.
ZEROING = {"relu", "relu6", "hardswish"}  # what is never positive leaves them as exactly 0
BOUNDS: dict[str, tuple[float, float]] = {
    "sigmoid": (0, 1),
    "hardsigmoid": (0, 1),
    "tanh": (-1, 1),
    "hardtanh": (-1, 1),
    "softsign": (-1, 1),
    "relu6": (-math.inf, 6),  # its zeros are those of a ReLU
}
SOFTMAX = {"softmax", "softmax2d"}


class ObservationSink(CaptureSink):
    """In the place of what keeps: sees values, keeps the statistics of gradients.

    Args:
        hooks: where it listens to tensors.
        max_bytes: not used, as nothing is kept.
        margin: how near a bound is at it, as a share of the width between the bounds.
    """

    def __init__(self, hooks: HookSet, max_bytes: int | None, *, margin: float) -> None:
        super().__init__(hooks, max_bytes)
        self.margin = margin
        self.sights: list[TensorObservation] = []

    def keep(self, slot: RecordKey, tensor: Tensor) -> None:
        """Look at a tensor."""
        if reason := unreadable_reason(tensor):
            self.mark_absent(slot, reason)
            return
        self.sights.append(observe_tensor(slot, tensor, self.margin))

    def _put(self, slot: RecordKey, tensor: Tensor, *, held: bool = False, **extra: Any) -> Tensor:
        return super()._put(slot, tensor, held=held, **extra)

    def _arrived(self, slot: RecordKey, grad: Tensor | None) -> None:
        if slot in self._arrivals:
            return
        super()._arrived(slot, grad)
        if slot in self._arrivals:
            self._arrivals[slot] = []  # told already, and not to be held


@torch.no_grad()
def observe_tensor(slot: RecordKey, tensor: Tensor, margin: float) -> TensorObservation:
    """Return what there is to be said of a tensor in the place ``slot``."""
    layer = slot.layer
    values = dense_real(tensor.detach())
    told: dict[str, Any] = {}
    if values.is_floating_point() and values.numel():
        told = {**_not_finite(values), **_activation(slot, values, margin)}
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorObservation(
        slot.kind, layer.name, layer.type, slot.call, slot.what, dtype, tensor.numel(), **told
    )


def _not_finite(values: Tensor) -> dict[str, int]:
    """How many entries are no finite numbers; looked at closer only if some are."""
    if bool(torch.isfinite(values).all()):
        return {}
    return {
        "nan": int(torch.isnan(values).sum()),
        "inf": int(torch.isposinf(values).sum()),
        "minus_inf": int(torch.isneginf(values).sum()),
    }


def _activation(slot: RecordKey, values: Tensor, margin: float) -> dict[str, Ratio]:
    """What is told of the output of an activation function, as a module or called by one."""
    own = slot.layer.type.lower()
    known = {*ZEROING, *BOUNDS, *SOFTMAX}
    if slot.kind == OUTPUT:
        name = own
    elif slot.kind == OP and own not in known:
        name = slot.what.partition(":")[0].rstrip("_")
    else:
        return {}
    found: dict[str, Ratio] = {}
    if name in ZEROING:
        found["dead"] = _dead(values)
    if name in BOUNDS:
        module = slot.layer.module
        low, high = BOUNDS[name]
        if name == own == "hardtanh":
            low, high = getattr(module, "min_val", low), getattr(module, "max_val", high)
        near = margin * (high - low if math.isfinite(low) else high)
        at_bound = (values >= high - near) | (values <= low + near)
        found["saturated"] = Ratio(int(at_bound.sum()), values.numel(), 1)
    elif name in SOFTMAX:
        found |= _rows(values, margin)
    return found


def _dead(values: Tensor) -> Ratio:
    """Units that are zero everywhere: along dimension 1, or the last one of three dimensions.

    Three dimensions are batch, channel, length or batch, token, feature; the one that looks better
    is believed.
    """
    alive = values != 0
    dims = [1, 2] if values.ndim == 3 else [min(1, values.ndim - 1)]
    gauges = []
    for dim in dims:
        if values.ndim == 0:
            units = alive.reshape(1)
        else:
            units = alive.movedim(dim, 0).flatten(1).any(1) if values.ndim > 1 else alive
        dead = units.numel() - int(units.sum())
        gauges.append(Ratio(dead, units.numel(), values.numel() // units.numel()))
    return min(gauges, key=lambda gauge: gauge.share)


def _rows(values: Tensor, margin: float) -> dict[str, Ratio]:
    """Rows of a softmax in which one entry has all but nothing left for the others."""
    for dim in (-1, min(1, values.ndim - 1)):
        if values.ndim and values.shape[dim] > 1:
            total = values.sum(dim, dtype=torch.float32)
            if bool(((total - 1).abs() < 0.05).all()):
                top = values.amax(dim)
                count = int((top >= 1 - margin).sum())
                return {"saturated": Ratio(count, top.numel(), values.shape[dim])}
    return {}
