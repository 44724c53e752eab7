"""Outputs of operators without values, made from the ones that the same shapes gave before.

Most of the time of a run goes to the dispatch of fake tensors. A model repeats its blocks, and the
search for a limit repeats the model, so most operators see shapes that they have seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.tensors.torch_internals import fake_tensors

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout)
_CPU = torch.device("cpu")
_TAGS = ("dynamic_output_shape", "data_dependent_output", "inplace_view")


@dataclass(frozen=True, slots=True)
class _Made:
    """An output: an argument itself, a view of one, or a new tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_fake: bool
    argument: int | None = None
    is_view: bool = True


_Metadata = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype, bool]
_Recipe = tuple[Callable[[list[Any]], Any], tuple[_Made | None, ...]]


class OutputCache:
    """Runs operators of PyTorch on the fake tensors of a mode, and on those of the meta device.

    Where PyTorch makes fake tensors in another way, every operator runs, which takes longer.
    """

    def __init__(self, mode: Any) -> None:
        self._mode, self._fakes = mode, fake_tensors()
        self._known: dict[Any, _Recipe | None] = {}
        self._can_make = self._makes_tensors()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the operator returns for these arguments."""
        tensors: list[Tensor] = []
        is_fixed = self._can_make and _has_fixed_shapes(func)
        key = self._key(func, args, kwargs, tensors) if is_fixed else None
        if key is None:
            return func(*args, **kwargs)
        if key in self._known:
            recipe = self._known[key]
            return func(*args, **kwargs) if recipe is None else self._make(recipe, tensors)
        output = func(*args, **kwargs)
        is_same = not func._schema.is_mutable or key == self._key(func, args, kwargs, [])
        self._known[key] = self._recipe(output, tensors) if is_same else None
        return output

    def empty_like(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor without values with the shape and strides of another one."""
        shape, stride = tuple(tensor.shape), tensor.stride()
        if self._can_make:
            return self._tensor(_Made(shape, stride, 0, dtype, True), ())
        with self._mode:
            return torch.empty_strided(shape, stride, dtype=dtype, device=_CPU)

    def _makes_tensors(self) -> bool:
        """Whether the private names that this class uses are there, and do what it expects."""
        made = _Made((1,), (1,), 0, torch.float32, True)
        try:
            return self._metadata(self._tensor(made, ())) == ((1,), (1,), 0, torch.float32, True)
        except Exception:  # a name is missing, or has other arguments
            return False

    def _key(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """All that the shapes of the output depend on; None if that is not known."""
        try:
            return func, self._part(args, tensors), self._part(tuple(kwargs.items()), tensors)
        except (TypeError, RuntimeError):  # as a sparse tensor, which has no strides
            return None

    def _part(self, value: Any, tensors: list[Tensor]) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            metadata = self._metadata(value)
            if metadata is None:
                raise TypeError
            tensors.append(value)
            return metadata
        if kind is tuple or kind is list:
            return tuple([self._part(one, tensors) for one in value])
        if kind in _PLAIN or kind is torch.memory_format:
            return kind, value  # 1 is not 1.0
        raise TypeError

    def _recipe(self, output: Any, tensors: Sequence[Tensor]) -> _Recipe | None:
        """How to make this output from the arguments; None where a new call is needed."""
        is_one = not isinstance(output, tuple | list)
        storages = [one.untyped_storage()._cdata for one in tensors]
        own: set[int] = set()
        parts: list[_Made | None] = []
        for one in [output] if is_one else output:
            if one is None:
                parts.append(None)
                continue
            made = self._metadata(one) if isinstance(one, Tensor) else None
            if made is None:
                return None
            storage = one.untyped_storage()
            same = next((i for i, argument in enumerate(tensors) if argument is one), None)
            if same is not None:
                parts.append(_Made(*made, same, is_view=False))
            elif storage._cdata in storages:
                parts.append(_Made(*made, storages.index(storage._cdata)))
            elif storage.nbytes() == _bytes(one) and storage._cdata not in own:
                own.add(storage._cdata)
                parts.append(_Made(*made))
            else:
                return None
        return (_first if is_one else type(output)), tuple(parts)

    def _make(self, recipe: _Recipe, tensors: Sequence[Tensor]) -> Any:
        build, parts = recipe
        return build([part and self._tensor(part, tensors) for part in parts])

    def _tensor(self, made: _Made, tensors: Sequence[Tensor]) -> Tensor:
        if made.argument is not None and not made.is_view:
            return tensors[made.argument]
        with self._fakes.in_kernel_invocation_manager(self._mode):
            new = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="meta")
            if made.argument is not None:
                storage = tensors[made.argument].untyped_storage()
                new.set_(storage, made.offset, made.shape, made.stride)
        if made.is_fake:
            new = self._fakes.FakeTensor(self._mode, new, _CPU)
        return new

    def _metadata(self, tensor: Any) -> _Metadata | None:
        """What a tensor without values is, in the order of ``_Made``; None for any other."""
        if tensor.layout is not torch.strided:
            return None
        is_fake = type(tensor) is self._fakes.FakeTensor
        if is_fake:
            if tensor.constant is not None or tensor.fake_device != _CPU:
                return None  # a constant has a value
        elif type(tensor) not in (Tensor, nn.Parameter) or not tensor.is_meta:
            return None
        if tensor.dtype.is_complex:  # it may be a conjugate view
            return None
        return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, is_fake


@cache
def _has_fixed_shapes(func: Any) -> bool:
    """Whether the inputs of an operator of PyTorch tell the shapes of its outputs."""
    tags = {getattr(torch.Tag, name) for name in _TAGS if hasattr(torch.Tag, name)}
    return func.namespace == "aten" and not tags.intersection(func.tags)


def _bytes(tensor: Tensor) -> int:
    """The bytes of a tensor that has a storage of its own."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _first(parts: list[Any]) -> Any:
    return parts[0]
