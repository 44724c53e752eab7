"""The inputs that PyTorch's layers expect, and the mismatches of a call that are certain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.files.words import shape_text
from hookscope.hooks.layers import own_parameters
from hookscope.tensors.nested import walk

_TORCH = "torch.nn.modules."
# The message on the meta device is different.
_MATRICES = re.compile(r"(?:cannot be multiplied|reduction dim).*?\d+(?:x|, )(\d+)\D+(\d+)")


@dataclass(frozen=True)
class Mismatch:
    """A difference between a call and what the layer expects."""

    text: str
    setting: str = ""
    wanted: Any = None
    got: Any = None


Call = tuple[tuple[Any, ...], dict[str, Any]]
Check = Callable[[nn.Module, Call, str], Iterator[Mismatch]]


def mismatches(layer: nn.Module, call: Call | None, message: str = "") -> list[Mismatch]:
    """Return the mismatches of a call of ``layer``, as far as they are known."""
    check = _CHECKS.get(kind_of(layer))
    by_class = list(check(layer, call, message)) if check and call else []
    certain = by_class or list(_product(message))
    return certain or (list(_other_dtype_or_device(layer, call)) if call else [])


def _product(message: str) -> Iterator[Mismatch]:
    """The mismatch in PyTorch's message about matrices that cannot be multiplied."""
    if sizes := _MATRICES.search(message):
        got, wanted = int(sizes[1]), int(sizes[2])
        yield Mismatch(
            f"{wanted} columns in the first matrix of a product, because the second has {wanted}"
            f" rows, got {got}.",
            wanted=wanted,
            got=got,
        )


def kind_of(layer: nn.Module) -> str:
    """Return the name of the PyTorch class that a layer is one of; empty if it is none."""
    original = getattr(layer, "_hookscope_class", None)  # of a scripted or exported layer
    if original is not None:
        return original.rpartition(".")[2] if original.startswith(_TORCH) else ""
    for base in type(layer).__mro__:
        if base.__module__.startswith(_TORCH):  # a subclass with another forward may take anything
            same = getattr(base, "forward", None) is type(layer).forward
            return base.__name__ if same else ""
    return ""


def _first(call: Call, name: str = "input") -> Tensor | None:
    args, kwargs = call
    value = args[0] if args else kwargs.get(name)
    return value if isinstance(value, Tensor) and not value.is_nested else None


def _last(setting: str, wanted: int, got: Tensor, of: str = "") -> Iterator[Mismatch]:
    place = f"the last dimension{of} ({setting}={wanted})"
    if got.ndim == 0:
        yield Mismatch(f"{wanted} features in {place}, got a scalar.")
    elif got.shape[-1] != wanted:
        yield Mismatch(
            f"{wanted} features in {place}, got {got.shape[-1]}.",
            setting,
            wanted,
            got.shape[-1],
        )


def _linear(layer: nn.Module, call: Call, message: str) -> Iterator[Mismatch]:
    tensor, weight = _first(call), getattr(layer, "weight", None)
    if tensor is not None and isinstance(weight, Tensor) and weight.ndim == 2:
        yield from _last("in_features", weight.shape[1], tensor)


def _channels(tensor: Tensor, rank: int, wanted: int, setting: str) -> Iterator[Mismatch]:
    """Whether dimension 1 is right, or 0 of an input without a batch."""
    dim = 1 if tensor.ndim == rank + 2 else 0
    if tensor.shape[dim] != wanted:
        yield Mismatch(
            f"{wanted} channels in dimension {dim} ({setting}={wanted}), got {tensor.shape[dim]}.",
            setting,
            wanted,
            tensor.shape[dim],
        )


def _rank(tensor: Tensor, ranks: tuple[int, ...]) -> Iterator[Mismatch]:
    if tensor.ndim not in ranks:
        wanted = " or ".join(map(str, ranks))
        yield Mismatch(
            f"{wanted} dimensions, got {tensor.ndim} ({shape_text(tensor.shape, 'a scalar')})."
        )


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * rank


def _kernel(layer: nn.Module, tensor: Tensor, rank: int) -> Iterator[Mismatch]:
    padding = getattr(layer, "padding", 0)
    if not hasattr(layer, "kernel_size") or isinstance(padding, str):
        return
    kernel = _each(layer.kernel_size, rank)
    pads, gaps = _each(padding, rank), _each(getattr(layer, "dilation", 1), rank)
    reach = tuple((k - 1) * g + 1 for k, g in zip(kernel, gaps, strict=True))
    sides = tensor.shape[-rank:]
    if any(side + 2 * pad < r for side, pad, r in zip(sides, pads, reach, strict=True)):
        padded = f" with padding {shape_text(pads)}" if any(pads) else ""
        dilated = f" ({shape_text(reach)} with dilation)" if reach != kernel else ""
        yield Mismatch(
            f"a size of at least the kernel's {shape_text(kernel)}{dilated}, got"
            f" {shape_text(sides)}{padded}."
        )


def _conv(layer: nn.Module, call: Call, message: str) -> Iterator[Mismatch]:
    tensor, weight = _first(call), getattr(layer, "weight", None)
    if tensor is None or not isinstance(weight, Tensor):
        return
    rank = weight.ndim - 2
    ranks = list(_rank(tensor, (rank + 2, rank + 1)))
    yield from ranks
    if ranks:
        return
    # A scripted or exported layer does not have its groups as an attribute.
    named = re.search(r"groups=(\d+)", message)
    groups = getattr(layer, "groups", None) or (int(named[1]) if named else None)
    if groups is None:
        return
    transposed = "Transpose" in kind_of(layer)
    wanted = weight.shape[0] if transposed else weight.shape[1] * groups
    yield from _channels(tensor, rank, wanted, "in_channels")
    if not transposed:
        yield from _kernel(layer, tensor, rank)


def _pool(layer: nn.Module, call: Call, message: str) -> Iterator[Mismatch]:
    tensor, rank = _first(call), int(kind_of(layer)[-2])
    if tensor is None:
        return
    ranks = list(_rank(tensor, (rank + 2, rank + 1)))
    yield from ranks or _kernel(layer, tensor, rank)


def _norm(layer: nn.Module, call: Call, message: str) -> Iterator[Mismatch]:
    tensor = _first(call)
    known = (getattr(layer, name, None) for name in ("weight", "running_mean"))
    width = next((tensor.shape[0] for tensor in known if isinstance(tensor, Tensor)), None)
    if tensor is None:
        return
    kind = kind_of(layer)
    rank = {"1": (2, 3), "2": (4,), "3": (5,)}.get(kind[-2], ())
    if "Instance" in kind:
        rank = {"1": (2, 3), "2": (3, 4), "3": (4, 5)}.get(kind[-2], ())
    ranks = list(_rank(tensor, rank)) if rank else []
    yield from ranks
    if ranks or tensor.ndim < 2 or "Instance" in kind:
        return
    wanted = getattr(layer, "num_channels", None) or width
    setting = "num_channels" if kind == "GroupNorm" else "num_features"
    if wanted is not None:
        yield from _channels(tensor, tensor.ndim - 2, wanted, setting)
    if "Expected more than 1 value per channel" in message:
        yield Mismatch(
            "more than one value per channel in train mode: a batch of 2 or more, or eval mode."
        )


def _layer_norm(layer: nn.Module, call: Call, message: str) -> Iterator[Mismatch]:
    tensor, weight = _first(call), getattr(layer, "weight", None)
    shape = getattr(layer, "normalized_shape", None)
    if shape is None and isinstance(weight, Tensor):
        shape = weight.shape
    if tensor is None or shape is None:
        return
    wanted = tuple(shape)
    got = tuple(tensor.shape[-len(wanted) :])
    if got != wanted:
        yield Mismatch(
            f"{shape_text(wanted)} in the last dimensions (normalized_shape), got"
            f" {shape_text(got, 'none')}.",
            "normalized_shape" if len(got) == len(wanted) else "",
            wanted if len(wanted) > 1 else wanted[0],
            got if len(got) > 1 else next(iter(got), None),
        )


def _embedding(layer: nn.Module, call: Call, message: str) -> Iterator[Mismatch]:
    tensor, weight = _first(call), getattr(layer, "weight", None)
    if tensor is None or not isinstance(weight, Tensor):
        return
    if tensor.dtype not in (torch.int64, torch.int32):
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield Mismatch(f"indices of dtype int64 or int32, such as ids.long(), got {dtype}.")
        return
    if tensor.is_meta or not tensor.numel():
        return
    low, high, rows = int(tensor.min()), int(tensor.max()), weight.shape[0]
    if low < 0:
        yield Mismatch(f"indices from 0 to {rows - 1} (num_embeddings={rows}), got {low}.")
    elif high >= rows:
        yield Mismatch(
            f"indices from 0 to {rows - 1} (num_embeddings={rows}), got {high}.",
            "num_embeddings",
            rows,
            high + 1,
        )


def _recurrent(layer: nn.Module, call: Call, message: str) -> Iterator[Mismatch]:
    tensor = _first(call)
    weight = getattr(layer, "weight_ih_l0", getattr(layer, "weight_ih", None))
    if tensor is None or not isinstance(weight, Tensor):  # a packed sequence
        return
    ranks = list(_rank(tensor, (1, 2) if kind_of(layer).endswith("Cell") else (2, 3)))
    yield from ranks or _last("input_size", weight.shape[1], tensor)


def _attention(layer: nn.Module, call: Call, message: str) -> Iterator[Mismatch]:
    args, kwargs = call
    arguments = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
    for name, setting in (("query", "embed_dim"), ("key", "kdim"), ("value", "vdim")):
        wanted, tensor = getattr(layer, setting, None), arguments.get(name)
        if isinstance(tensor, Tensor) and not tensor.is_nested and wanted is not None:
            mismatch = next(_last(setting, wanted, tensor, f" of {name}"), None)
            if mismatch:
                yield Mismatch(mismatch.text, wanted=mismatch.wanted, got=mismatch.got)
                return


def _other_dtype_or_device(layer: nn.Module, call: Call) -> Iterator[Mismatch]:
    own = next(chain(own_parameters(layer).values(), layer.buffers(recurse=False)), None)
    if own is None:
        return
    for _, tensor in walk(call):
        if tensor.device != own.device:
            yield Mismatch(
                f"tensors on {own.device}, the device of its parameters, got one on"
                f" {tensor.device}."
            )
            return
    floating = own.is_floating_point() and kind_of(layer) not in ("Embedding", "EmbeddingBag")
    for _, tensor in walk(call):
        if floating and tensor.dtype != own.dtype and kind_of(layer):
            dtypes = [str(dtype).removeprefix("torch.") for dtype in (own.dtype, tensor.dtype)]
            yield Mismatch(
                f"{dtypes[0]}, the dtype of its parameters, got {dtypes[1]}."
                f" Convert one of them: x.to(torch.{dtypes[0]}), or layer.to(torch.{dtypes[1]})."
                if tensor.is_floating_point()
                else f"{dtypes[0]}, the dtype of its parameters, got {dtypes[1]}:"
                f" x.to(torch.{dtypes[0]})."
            )
            return


_DIMENSIONS = ("1d", "2d", "3d")
_CHECKS: dict[str, Check] = {
    **dict.fromkeys(("Linear", "NonDynamicallyQuantizableLinear"), _linear),
    **{f"Conv{d}": _conv for d in _DIMENSIONS},
    **{f"ConvTranspose{d}": _conv for d in _DIMENSIONS},
    **{f"{name}Pool{d}": _pool for d in _DIMENSIONS for name in ("Max", "Avg")},
    **{f"{name}Norm{d}": _norm for d in _DIMENSIONS for name in ("Batch", "Instance")},
    "GroupNorm": _norm,
    **dict.fromkeys(("LayerNorm", "RMSNorm"), _layer_norm),
    **dict.fromkeys(("Embedding", "EmbeddingBag"), _embedding),
    **dict.fromkeys(("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"), _recurrent),
    "MultiheadAttention": _attention,
}
