"""What operators of the CPU hold inside themselves, on one thread: copies and buffers.

Fake tensors show the outputs of an operator alone. The sizes here are those in PyTorch's code, and
in oneDNN's for convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hookscope.tensors.torch_internals import (
    cpu_attention,
    cpu_attention_backward,
    native_attention,
    select_conv_backend,
)

_PACKED = torch.bfloat16  # processors with matrix instructions get keys and values in their order
_SUM = 4  # bytes: attention adds up in float32
_BLOCK = 16  # channels; 8 without AVX-512
_FEW = 4  # channels of an input that oneDNN reads as they are

_Arguments = tuple[Any, ...]
_Sizes = Sequence[int]


def workspaces(func: Any, args: _Arguments, output: Any) -> list[int]:
    """Return the bytes that an operator holds besides its output, at the times that may be most."""
    sizes_of = _SIZES.get(func._overloadpacket)
    return [] if sizes_of is None else [size for size in sizes_of(args, output) if size]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _copies(*tensors: Tensor) -> int:
    return sum(_bytes(one) for one in tensors if not one.is_contiguous())


def _casts(args: _Arguments, output: Tensor) -> _Sizes:
    """The operands in the dtype of the computation, where that is another one."""
    tensors, dtype = [one for one in args[:2] if isinstance(one, Tensor) and one.ndim], output.dtype
    if output is args[0]:  # the result is computed beside it first
        dtype = torch.result_type(*args[:2])
        tensors.append(output)
    return (sum(one.numel() * dtype.itemsize for one in tensors if one.dtype != dtype),)


def _layer_norm(args: _Arguments, _: object) -> _Sizes:
    return (_copies(args[0]),)


def _layer_norm_backward(args: _Arguments, _: object) -> _Sizes:
    gradient, value, weight = args[0], args[1], args[5]
    return (_copies(gradient, value) + (0 if weight is None else 2 * _bytes(weight)),)


def _batch_norm_backward(args: _Arguments, _: object) -> _Sizes:
    """A second gradient of the input, which is what a kernel for contiguous tensors allocates."""
    gradient, value, mask = args[0], args[1], args[-1]
    return (0 if _copies(gradient, value) or not mask[0] else _bytes(value),)


def _blocks(query: Tensor, key: Tensor) -> tuple[int, int]:
    """How many queries and keys are computed with at a time."""
    length = query.shape[2]
    most = 256 if length >= 768 else 64 if length >= 192 else 32
    return min(length, most), min(key.shape[2], 512)


def _attention(args: _Arguments, _: object) -> _Sizes:
    query, key, value = args[:3]
    queries, keys = _blocks(query, key)
    width, size = query.shape[3], query.element_size()
    total = queries * (keys + 2 + width) * _SUM
    if size < _SUM:
        total += queries * keys * size
    if query.dtype == _PACKED:
        total += _bytes(key) + _bytes(value) + keys * width * size
    return (total,)


def _attention_backward(args: _Arguments, _: object) -> _Sizes:
    gradient, query, key = args[:3]
    queries, keys = _blocks(query, key)
    size = query.element_size()
    scores = 2 * queries * keys * (_SUM + (size if size < _SUM else 0))
    return (_copies(gradient.transpose(1, 2)) + scores,)


def _native_attention(args: _Arguments, _: object) -> _Sizes:
    """Queries, keys and values in one tensor and again by heads; or by heads, and the scores."""
    query, heads = args[0], args[4]
    batch, length = query.shape[:2]
    scores = batch * heads * length**2 * query.element_size()
    return 5 * _bytes(query), 2 * _bytes(query) + scores


def _convolution(args: _Arguments, output: Tensor) -> _Sizes:
    value, weight, _, *options = args
    kind, made = _conv_kind(value, weight, options), _bytes(output)
    if kind == "columns":
        return (_columns(value, weight, output),)
    if kind == "blocks":
        blocked, is_transposed = _in_blocks(output), options[3]
        first = _read_in_blocks(value) + _bytes(weight) + blocked - made
        return first, blocked + (made if is_transposed else 0)
    return (_bytes(weight),) if kind == "channels last" else ()


def _convolution_backward(args: _Arguments, _: object) -> _Sizes:
    gradient, value, weight, _, *options = args
    kind = _conv_kind(value, weight, options[:6])
    if kind == "columns":
        return (_columns(value, weight, gradient),)
    if kind == "blocks":
        return _in_blocks(gradient) + _read_in_blocks(value), _bytes(weight)
    return (_bytes(weight),) if kind == "channels last" else ()


def _conv_kind(value: Tensor, weight: Tensor, options: Sequence[Any]) -> str:
    """How PyTorch computes a convolution: channels in blocks, or places as columns."""
    code = str(select_conv_backend(value, weight, None, *options)).rpartition(".")[2]
    if code == "Slow2d":
        return "columns"
    if code not in ("Mkldnn", "???"):  # the second one, for a transposed one, has no name in Python
        return ""
    return "blocks" if value.is_contiguous() else "channels last"


def _columns(value: Tensor, weight: Tensor, output: Tensor) -> int:
    """All that each place of the output is computed from, unless that is a place of the input."""
    kernel, places = math.prod(weight.shape[2:]), math.prod(output.shape[2:])
    channels = math.prod(value.shape[:2]) * value.element_size()
    return 0 if kernel == 1 else channels * kernel * places


def _in_blocks(tensor: Tensor) -> int:
    channels = tensor.shape[1]
    return _bytes(tensor) // channels * (channels + -channels % _BLOCK)


def _read_in_blocks(tensor: Tensor) -> int:
    return 0 if tensor.shape[1] <= _FEW else _in_blocks(tensor)


_ATEN = torch.ops.aten
_SIZES: dict[Any, Callable[[_Arguments, Any], _Sizes]] = {
    **dict.fromkeys((_ATEN.add, _ATEN.add_, _ATEN.sub, _ATEN.sub_), _casts),
    **dict.fromkeys((_ATEN.mul, _ATEN.mul_, _ATEN.div, _ATEN.div_), _casts),
    _ATEN.native_layer_norm: _layer_norm,
    _ATEN.native_layer_norm_backward: _layer_norm_backward,
    _ATEN.native_batch_norm_backward: _batch_norm_backward,
    _ATEN.convolution: _convolution,
    _ATEN.convolution_backward: _convolution_backward,
    cpu_attention: _attention,
    cpu_attention_backward: _attention_backward,
    native_attention: _native_attention,
}
