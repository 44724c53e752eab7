"""How the operators of PyTorch pass on which positions of the input a value depends on.

Each value has a bound for each side of the input: the smallest position that it depends on, and the
largest one, negated, so that every rule takes a minimum. A value that depends on nothing has the
bound infinity, and one that depends on padding has minus infinity on that side: its receptive field
goes on beyond the edge of the input.

A bound is a tensor of the shape of its values. Along dimensions in which it does not vary, such as
the channels of a convolution, its stride is 0: the rules compute with one entry of such dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NONE, BEYOND = math.inf, -math.inf  # depends on nothing; on what is beyond the edge
_MOST_TAPS = 64  # of a resampling: what depends on more positions depends on all


def thin(bound: Tensor) -> Tensor:
    """Return a bound with one entry along the dimensions in which it is the same throughout."""
    for dim in range(bound.ndim):
        if bound.stride(dim) == 0 and bound.shape[dim] > 1:
            bound = bound.narrow(dim, 0, 1)
    return bound


def none(shape: Sequence[int]) -> Tensor:
    """Return the bound of values that depend on nothing."""
    return torch.full((), NONE).expand(tuple(shape))


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator: its arguments by name, and the shape of its first output.

    ``bounds`` has one bound of each argument that depends on the input, in the place of the tensor
    or, of a list of tensors, in a list of the same length.
    """

    operator: Any
    arguments: dict[str, Any]
    bounds: dict[str, Any]
    shape: tuple[int, ...]

    def numbers(self, name: str, count: int, default: int = 0) -> list[int]:
        """Return an argument with a number for each of ``count`` dimensions."""
        value = self.arguments.get(name)
        if value is None or value == []:
            return [default] * count
        values = [value] if isinstance(value, int) else list(value)
        return values * count if len(values) == 1 else values

    def each(self) -> Iterator[Tensor]:
        """Yield all bounds."""
        for value in self.bounds.values():
            yield from value if isinstance(value, list) else [value]

    @property
    def first(self) -> Tensor:
        """The bound of the first argument that has one."""
        return next(self.each())

    def with_all_of(self, name: str, bound: Tensor) -> Tensor:
        """Return a bound joined with everything that the arguments but ``name`` depend on."""
        others = [value for key, value in self.bounds.items() if key != name]
        for other in others:
            for one in other if isinstance(other, list) else [other]:
                bound = torch.minimum(bound, thin(one).amin())
        return bound


Rule = Callable[[OperatorCall], Tensor]


def everything(call: OperatorCall) -> Tensor:
    """Let each output depend on all that the arguments depend on: the rule of unknown operators."""
    return torch.stack([thin(bound).amin() for bound in call.each()]).amin().expand(call.shape)


def elementwise(call: OperatorCall) -> Tensor:
    """Let each entry depend on the entries at its place in the arguments."""
    joined = thin(call.first)
    for bound in call.each():
        joined = torch.minimum(joined, thin(bound))
    return joined.expand(call.shape)


def _first_argument(call: OperatorCall) -> Tensor:
    """Normalisation by fixed statistics, dropout: the parameters are not of the input."""
    return call.first


def _batch_norm(call: OperatorCall) -> Tensor:
    """By the statistics of the batch, if there are no others: over all but the channels."""
    if not (call.arguments.get("training") or call.arguments.get("use_input_stats")):
        return call.first
    dims = [dim for dim in range(call.first.ndim) if dim != 1]
    return thin(call.first).amin(dims, keepdim=True).expand(call.shape)


def _layer_norm(call: OperatorCall) -> Tensor:
    count = len(call.arguments["normalized_shape"])
    return thin(call.first).amin(list(range(-count, 0)), keepdim=True).expand(call.shape)


def _group_norm(call: OperatorCall) -> Tensor:
    bound, groups = thin(call.first), call.arguments["group"]
    inside = list(range(2, bound.ndim))
    bound = bound.amin(inside, keepdim=True) if inside else bound
    return _over_groups(bound, groups, call.first.shape[1]).expand(call.shape)


def _over_groups(bound: Tensor, groups: int, channels: int) -> Tensor:
    """The minimum over the channels of each group, for ``channels`` channels."""
    if bound.shape[1] == 1:
        return bound
    bound = bound.unflatten(1, (groups, -1)).amin(2)
    return bound if groups == 1 else bound.repeat_interleave(channels // groups, 1)


def _reduction(call: OperatorCall) -> Tensor:
    """Over some dimensions, or all of them: the result has their minimum, at each of its places."""
    bound, dims = thin(call.first), call.arguments.get("dim")
    dims = [dims] if isinstance(dims, int) else list(dims or range(bound.ndim))
    return _reduced(bound, dims, call)


def _reduced(bound: Tensor, dims: list[int], call: OperatorCall) -> Tensor:
    bound = bound.amin(dims, keepdim=True) if bound.ndim else bound
    if len(call.shape) == bound.ndim:
        return bound.expand(call.shape)
    kept = [dim for dim in range(bound.ndim) if dim not in {each % bound.ndim for each in dims}]
    return bound.reshape([bound.shape[dim] for dim in kept]).expand(call.shape)


def _product(call: OperatorCall) -> Tensor:
    """A product of matrices: each entry depends on a row and a column."""
    names = {"mat1": -1, "batch1": -1, "self": -1, "input": -1}
    columns = {"mat2": -2, "batch2": -2}
    if "mat1" in call.arguments or "batch1" in call.arguments:
        names.pop("self")  # it is added
    parts = []
    for name, bound in call.bounds.items():
        dim = names.get(name) or columns.get(name)
        if name in ("vec", "weight"):  # not at a place of its own
            parts.append(thin(bound).amin())
        else:
            parts.append(thin(bound) if dim is None else thin(bound).amin(dim, keepdim=True))
    joined = parts[0]
    for part in parts[1:]:
        joined = torch.minimum(joined, part)
    if "vec" in call.arguments and joined.ndim > len(call.shape):
        joined = joined.squeeze(-1)
    return joined.expand(call.shape)


def _attention(call: OperatorCall) -> Tensor:
    """Each query depends on all keys and values, whatever is masked."""
    bounds = [thin(call.bounds[name]) for name in ("query", "key", "value") if name in call.bounds]
    joined = torch.stack([bound.amin() for bound in bounds]).amin()
    for bound in bounds:
        if bound.ndim == len(call.shape) == 4:  # of the batch and the heads apart
            per_head = [bound.amin((-1, -2), keepdim=True) for bound in bounds]
            joined = per_head[0]
            for part in per_head[1:]:
                joined = torch.minimum(joined, part)
            break
    return joined.expand(call.shape)


def padded(bound: Tensor, dim: int, before: int, after: int, step: int = 1) -> Tensor:
    """Pad or cut a bound along a dimension.

    On the side where the positions of the input end, every ``step``-th entry, counted from the edge
    of the bound, is beyond the edge of the input.
    """
    size = bound.shape[dim]
    if before == after == 0:
        return bound
    rest = [each for each in range(bound.ndim) if each != dim]
    first, last = (
        bound.narrow(dim, at, 1).amin(rest).amin() if rest else bound.narrow(dim, at, 1).amin()
        for at in (0, size - 1)
    )
    parts = [bound.narrow(dim, max(-before, 0), size - max(-before, 0) - max(-after, 0))]
    for count, is_end, place in ((before, first < last, 0), (after, last < first, 1)):
        if count <= 0:
            continue
        shape = list(bound.shape)
        shape[dim] = count
        pad = bound.new_full(shape, NONE)
        if is_end:
            away = torch.arange(1, count + 1)  # from the edge
            beyond = (away % step == 0) if place else (away % step == 0).flip(0)
            pad.index_fill_(dim, beyond.nonzero()[:, 0], BEYOND)
        parts.insert(0 if place == 0 else len(parts), pad)
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0]


def _windows(bound: Tensor, dim: int, size: int, kernel: int, stride: int, dilation: int) -> Tensor:
    """The minimum over the window of each of ``size`` positions along a dimension."""
    reach = (size - 1) * stride + 1
    every = torch.stack(
        [
            bound.narrow(dim, tap * dilation, reach).unfold(dim, 1, stride).squeeze(-1)
            for tap in range(kernel)
        ]
    )
    return every.amin(0)


def _over_windows(bound: Tensor, call: OperatorCall, kernel: Sequence[int]) -> Tensor:
    """The minimum over the windows of a convolution or a pooling."""
    count = len(kernel)
    stride = call.numbers("stride", count)
    strides = [s or k for s, k in zip(stride, kernel, strict=True)]
    padding, dilation = call.numbers("padding", count), call.numbers("dilation", count, 1)
    for i, dim in enumerate(range(-count, 0)):
        dim, size = bound.ndim + dim, call.shape[dim]
        needed = (size - 1) * strides[i] + dilation[i] * (kernel[i] - 1) + 1
        after = needed - call.first.shape[dim] - padding[i]
        if bound.shape[dim] != call.first.shape[dim]:  # the same throughout
            continue
        bound = padded(bound, dim, padding[i], after)
        bound = _windows(bound, dim, size, kernel[i], strides[i], dilation[i])
    return bound


def _pooling(call: OperatorCall) -> Tensor:
    value = call.arguments["kernel_size"]
    count = call.first.ndim - (2 if call.first.ndim > 2 else 1)
    if not isinstance(value, int) and len(value) > 1:
        count = len(value)
    kernel = call.numbers("kernel_size", count)
    return _over_windows(thin(call.first), call, kernel).expand(call.shape)


def _convolution(call: OperatorCall) -> Tensor:
    name = "input"
    if name not in call.bounds:  # weights that are computed from the input
        return everything(call)
    weight, groups = call.arguments["weight"], call.arguments.get("groups", 1)
    bound = _over_groups(thin(call.bounds[name]), groups, call.shape[1])
    kernel = tuple(weight.shape[2:])
    if call.arguments.get("transposed"):
        bound = _spread(bound, call, kernel)
    else:
        bound = _over_windows(bound, call, kernel)
    return call.with_all_of(name, bound).expand(call.shape)


def _spread(bound: Tensor, call: OperatorCall, kernel: Sequence[int]) -> Tensor:
    """The minimum over the positions that a transposed convolution adds to each position."""
    count = len(kernel)
    stride, dilation = call.numbers("stride", count, 1), call.numbers("dilation", count, 1)
    padding = call.numbers("padding", count)
    for i, dim in enumerate(range(-count, 0)):
        dim, size = bound.ndim + dim, call.shape[dim]
        length = call.first.shape[dim]
        if bound.shape[dim] != length:  # the same throughout
            continue
        shape = list(bound.shape)
        shape[dim] = (length - 1) * stride[i] + 1
        apart = bound.new_full(shape, NONE)
        index = torch.arange(length) * stride[i]
        apart.index_copy_(dim, index, bound)
        reach = dilation[i] * (kernel[i] - 1)
        before = reach - padding[i]
        apart = padded(apart, dim, before, size + reach - before - shape[dim], stride[i])
        bound = _windows(apart, dim, size, kernel[i], 1, dilation[i])
    return bound


def _adaptive_pooling(call: OperatorCall) -> Tensor:
    """Windows from floor(i n / m) to ceil((i + 1) n / m), as PyTorch computes them."""
    bound = thin(call.first)
    for dim in range(-len(call.arguments["output_size"]), 0):
        length, size = call.first.shape[dim], call.shape[dim]
        if bound.shape[dim] != length:  # the same throughout
            continue
        parts = []
        for i in range(size):
            start, end = i * length // size, -(-(i + 1) * length // size)
            parts.append(bound.narrow(dim, start, end - start).amin(dim, keepdim=True))
        bound = torch.cat(parts, dim)
    return bound.expand(call.shape)


def _resampling(call: OperatorCall) -> Tensor:
    """Resizing: the operator itself tells which positions it mixes, along one dimension at a time.

    It is called with a channel for each position, which is 1 there and 0 elsewhere.
    """
    bound, sides = thin(call.first), call.first.ndim - 2
    for dim in range(2, 2 + sides):
        length, size = call.first.shape[dim], call.shape[dim]
        if bound.shape[dim] != length or length == size:
            continue
        shape = [1, length, *[1] * sides]
        shape[dim] = length
        arguments = dict(call.arguments)
        name = next(iter(arguments))
        arguments[name] = torch.eye(length).reshape(shape)
        arguments["output_size"] = [size if each == dim else 1 for each in range(2, 2 + sides)]
        mixed = call.operator(**arguments).reshape(length, size).T != 0
        taps = int(mixed.sum(1).max())
        if taps > _MOST_TAPS:
            bound = bound.amin(dim, keepdim=True)
            continue
        found = mixed.float().topk(taps, dim=1)
        index = torch.where(found.values > 0, found.indices, found.indices[:, :1])
        bound = bound.index_select(dim, index.flatten()).unflatten(dim, (size, taps)).amin(dim + 1)
    return bound.expand(call.shape)


def _constant_pad(call: OperatorCall) -> Tensor:
    bound, pads = thin(call.first), list(call.arguments["pad"])
    for i in range(len(pads) // 2):
        dim = bound.ndim - 1 - i
        if bound.shape[dim] == call.first.shape[dim]:
            bound = padded(bound, dim, pads[2 * i], pads[2 * i + 1])
    return bound.expand(call.shape)


def _as_strided(call: OperatorCall) -> Tensor:
    """Other strides; of another shape, the memory of a bound differs from that of its values."""
    return call.first if tuple(call.first.shape) == call.shape else everything(call)


def _softmax(call: OperatorCall) -> Tensor:
    dim = call.arguments["dim"]
    return thin(call.first).amin(dim, keepdim=True).expand(call.shape)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _named(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, Rule] = {
    **_named(elementwise, "hardswish copy clone contiguous _to_copy rrelu_with_noise threshold"),
    **_named(_first_argument, "native_dropout"),
    **_named(
        _batch_norm, "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm"
    ),
    **_named(_batch_norm, "_native_batch_norm_legit _batch_norm_with_update"),
    **_named(_first_argument, "_native_batch_norm_legit_no_training _batch_norm_no_update"),
    **_named(_layer_norm, "native_layer_norm _fused_rms_norm rms_norm"),
    **_named(_group_norm, "native_group_norm"),
    **_named(_softmax, "_softmax _log_softmax _safe_softmax"),
    **_named(_reduction, "mean sum amax amin max min var std var_mean std_mean prod norm"),
    **_named(_reduction, "linalg_vector_norm logsumexp argmax argmin cumsum cumprod all any"),
    **_named(_reduction, "topk sort median nansum aminmax"),
    **_named(_product, "mm bmm addmm baddbmm linear mv addmv"),
    **_named(_attention, "_scaled_dot_product_flash_attention_for_cpu"),
    **_named(_attention, "_scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention"),
    **_named(_attention, "_scaled_dot_product_efficient_attention"),
    **_named(_attention, "_scaled_dot_product_fused_attention_overrideable"),
    **_named(_convolution, "convolution _convolution cudnn_convolution mkldnn_convolution"),
    **_named(_pooling, "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices"),
    **_named(_pooling, "max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d"),
    **_named(_adaptive_pooling, "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d"),
    **_named(_adaptive_pooling, "adaptive_max_pool3d adaptive_avg_pool2d adaptive_avg_pool3d"),
    **_named(_resampling, "upsample_nearest1d upsample_nearest2d upsample_nearest3d"),
    **_named(_resampling, "_upsample_nearest_exact1d _upsample_nearest_exact2d"),
    **_named(_resampling, "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d"),
    **_named(_resampling, "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa"),
    **_named(_resampling, "_upsample_bicubic2d_aa"),
    **_named(_constant_pad, "constant_pad_nd"),
    **_named(_as_strided, "as_strided"),
}

# Called with the bounds themselves: they move entries, and compute nothing.
MOVES = _names(
    "cat stack roll flip index index_select gather repeat repeat_interleave"
    " reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d"
    " replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle im2col split_with_sizes"
    " native_channel_shuffle unfold rot90"
)
# Their results do not depend on the values of their arguments.
CONSTANTS = _names(
    "zero fill zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones"
    " new_full new_empty new_empty_strided bernoulli _local_scalar_dense is_same_size"
)
# ``view`` needs values in one piece, which a bound need not be.
RESHAPES = _names("view _unsafe_view reshape _reshape_alias")
