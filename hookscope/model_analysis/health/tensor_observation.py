"""What is measured of each tensor of a run, while no tensor is stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hookscope.hooks.capture import Capture
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.tensor_sink import absent, put
from hookscope.results.records import Absent
from hookscope.specs.tensor_key import OP, OUTPUT
from hookscope.tensors.grad_mode import without_grad
from hookscope.tensors.nested import unreadable_reason, walk
from hookscope.tensors.tensor_stats import dense_real

# By the name of a function, or of a module's class in lower case.
ZEROING = {"relu", "relu6", "hardswish"}  # their output is 0 where the input is not positive
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


class ObservationSink:
    """Observes values and keeps the statistics of gradients; stores no tensor."""

    adds_gradients = False

    def __init__(self, margin: float) -> None:
        self.margin = margin
        self.capture = Capture()
        self.absent: list[Absent] = []
        self.open = False
        self.observations: list[TensorObservation] = []
        self._arguments: frozenset[str] = frozenset()

    def before_op(self, arguments: Sequence[Tensor]) -> None:
        """Observe what a function gets, which it may change in place."""
        self._arguments = nonfinite_kinds(arguments)

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Observe a tensor."""
        if reason := unreadable_reason(tensor):
            self.mark_absent(key, reason)
            return
        observation = observe_tensor(key, tensor, self.margin)
        if key.kind == OP:
            observation = replace(observation, arguments=self._arguments)
        self.observations.append(observation)

    def store_gradient(
        self,
        key: RecordKey,
        gradient: Tensor,
        aliases: tuple[str, ...] | None = None,
        weight_norm: float | None = None,
    ) -> None:
        """Keep the statistics of a gradient."""
        if reason := unreadable_reason(gradient):
            self.mark_absent(key, reason)
            return
        put(self.capture, key, gradient, aliases, weight_norm, held=False)

    def mark_absent(self, key: RecordKey, reason: str) -> None:
        """Note why a tensor is not there."""
        self.absent.append(absent(key, reason))


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
    """Return which of NAN, INF and MINUS_INF are among the values of some tensors.

    A tensor whose values cannot be read counts as finite.
    """
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
    """Units that are zero everywhere, along dimension 1, or the last of three dimensions.

    Three dimensions are batch, channel, length or batch, token, feature. The one with the smaller
    share is taken.
    """
    alive = values != 0
    dims = [1, 2] if values.ndim == 3 else [min(1, values.ndim - 1)]
    ratios = []
    for dim in dims:
        if values.ndim == 0:
            units = alive.reshape(1)
        else:
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
