"""Follows on which positions of a model's input each value depends, operator by operator.

A dispatch mode sees every operator of PyTorch. The values are never read, so a model can run on the
meta device, and a ReLU that is off or a pooling that takes another entry hides no position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hookscope.model_analysis.receptive.dependency_rules import (
    CONSTANTS,
    MOVES,
    NONE,
    RESHAPES,
    RULES,
    OperatorCall,
    elementwise,
    everything,
    none,
)
from hookscope.tensors.nested import operator_tensors
from hookscope.tensors.torch_internals import TorchDispatchMode

Bounds = tuple[
    Tensor, ...
]  # of a value: for each side of the input the first and the last position


class NeedsValues(Exception):
    """An operator moves entries to places that are values, and a meta tensor has none."""


class DependencyTracker(TorchDispatchMode):  # type: ignore[misc]
    """Within the block, keeps the bounds of each value that depends on an input.

    Attributes:
        unknown: names of operators without a rule, whose results count as dependent on all that
            their arguments depend on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unknown: set[str] = set()
        self._bounds: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def follow(self, image: Tensor) -> None:
        """Follow an input (N, C, *sides): each entry depends on its own position."""
        bounds = []
        for dim in range(2, image.ndim):
            shape = [1] * image.ndim
            shape[dim] = -1
            place = torch.arange(image.shape[dim], dtype=torch.float32).reshape(shape)
            bounds += [place.expand(image.shape), (-place).expand(image.shape)]
        self._bounds[image] = tuple(bounds)

    def bounds(self, value: Tensor) -> Bounds | None:
        """Return the bounds of a value; None if it does not depend on the input."""
        found: Bounds | None = self._bounds.get(value)
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        followed = any(tensor in self._bounds for tensor in operator_tensors((args, kwargs)))
        output = func(*args, **kwargs)
        name = func.name().partition("::")[2].partition(".")[0]
        in_place = name.endswith("_") and not name.startswith("__")
        if not followed:
            return output
        outputs = list(operator_tensors(output))
        if outputs:
            arguments = _by_name(func, args, kwargs)
            found = self._passed_on(func, name.rstrip("_") if in_place else name, arguments, output)
            for tensor, bounds in zip(outputs, found, strict=False):
                if in_place:
                    self._overwrite(tensor, bounds)
                elif bounds is not None:
                    self._bounds[tensor] = bounds
        return output

    def _passed_on(
        self, func: Any, name: str, arguments: dict[str, Any], output: Any
    ) -> Iterator[Bounds | None]:
        """The bounds of each output."""
        outputs = list(operator_tensors(output))
        if name in CONSTANTS:
            return iter([None] * len(outputs))
        count = next(len(self._bounds[t]) for t in operator_tensors(arguments) if t in self._bounds)
        each = [self._one_bound(func, name, arguments, outputs, k) for k in range(count)]
        return iter(list(zip(*each, strict=True)))

    def _one_bound(
        self, func: Any, name: str, arguments: dict[str, Any], outputs: list[Tensor], k: int
    ) -> list[Tensor]:
        """One of the bounds of each output."""
        bounds = {
            key: found
            for key, value in arguments.items()
            if (found := self._bounds_in(value, k)) is not None
        }
        shapes = [tuple(tensor.shape) for tensor in outputs]
        call = OperatorCall(func, arguments, bounds, shapes[0])
        if name in RESHAPES:
            return [call.first.reshape(shapes[0])]
        if name not in RULES and (func.is_view or name in MOVES):
            replaced = arguments | bounds
            if any(tensor.is_meta for tensor in operator_tensors(replaced)):
                raise NeedsValues(name)
            return list(
                operator_tensors(func(**{key: _on_cpu(one) for key, one in replaced.items()}))
            )
        rule = RULES.get(name)
        if rule is None:
            rule = elementwise if torch.Tag.pointwise in func.tags else everything
            if rule is everything:
                self.unknown.add(name)
        first = rule(call)
        others = [first if shape == shapes[0] else none(shape) for shape in shapes[1:]]
        return [first, *others]

    def _bounds_in(self, value: Any, k: int) -> Any:
        """A bound of an argument; of a list of tensors a list, in which some depend on nothing."""
        if isinstance(value, Tensor):
            found = self._bounds.get(value)
            return None if found is None else found[k]
        if isinstance(value, list | tuple) and any(
            t in self._bounds for t in operator_tensors(value)
        ):
            return [
                one
                if not isinstance(one, Tensor)
                else self._bounds[one][k]
                if one in self._bounds
                else none(one.shape)
                for one in value
            ]
        return None

    def _overwrite(self, tensor: Tensor, bounds: Bounds | None) -> None:
        """Note what a tensor depends on after it was written to, and what it is a view of."""
        base = tensor._base
        if base is None or not _is_dense(base):
            self._bounds.pop(tensor, None)
            if bounds is not None:
                self._bounds[tensor] = bounds
            return
        count = len(bounds or self._bounds.get(base) or self._bounds.get(tensor) or ())
        known = self._bounds.get(base) or (none(base.shape),) * count
        whole, parts = [], []
        for k in range(count):
            copy = torch.empty_strided(base.shape, base.stride(), dtype=torch.float32)
            copy.copy_(known[k])
            part = copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            part.copy_(torch.full((), NONE) if bounds is None else bounds[k])
            whole.append(copy)
            parts.append(part)
        self._bounds[base], self._bounds[tensor] = tuple(whole), tuple(parts)


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor fills its memory from the beginning, so that a copy can have its strides."""
    size = 1 + sum(
        (n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return bool(tensor.storage_offset() == 0 and size == tensor.numel())


def _by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by their names."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_on_cpu(one) for one in value]
    return value.cpu() if isinstance(value, Tensor) else value
