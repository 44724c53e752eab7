"""Statistics of a torch tensor, in one pass over its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.errors import HookscopeError
from hookscope.results.stats import BLOCK, Moments, Stats, exponent_of, square_in_range
from hookscope.tensors.grad_mode import without_grad
from hookscope.tensors.nested import as_dense, unreadable_reason

_MASKED = 1 << 22  # elements of a block of real_blocks
# By the name of a function, or of a module's class in lower case: the output is 0 where the input
# is not positive. A unit is dead if its output is always 0.
ZEROING = {"relu", "relu6", "hardswish"}
_IN_NUMPY = (torch.float16, torch.float32, torch.float64)


@without_grad
def summarize(tensor: Tensor) -> Stats:
    """Return the statistics of ``tensor``: any shape, dtype or device."""
    nested = "nested; its components have statistics" if tensor.is_nested else ""
    if reason := nested or unreadable_reason(tensor):
        raise HookscopeError(
            f"This tensor has no statistics: it is {reason}.", "Record the plain tensors in it."
        )
    flat = _dense(tensor.detach()).reshape(-1)
    exact = not (flat.is_floating_point() or flat.is_complex())
    moments = Moments()
    for block in flat.split(BLOCK):
        wide = _widen(block)
        # Several times faster on a CPU than ``torch.count_nonzero``.
        moments.zeros += int(torch.logical_not(wide).sum())
        if not wide.numel():
            continue
        values = wide
        bounds = _exact_bounds(block) if exact else _bounds(wide)
        if not all(map(math.isfinite, bounds)):  # NaN is a bound wherever it is
            values = wide[torch.isfinite(wide)]
            nan_here = int(torch.isnan(wide).sum())
            moments.nan += nan_here
            moments.inf += wide.numel() - values.numel() - nan_here
            if not values.numel():
                continue
            bounds = _bounds(values)
        low, high = bounds
        moments.add(values.numel(), low, high, partial(_sums, values))
    return moments.stats(flat.numel(), exact)


def _sums(values: Tensor, exponent: int) -> tuple[float, float, float]:
    """The sums that ``Moments.add`` asks for."""
    if exponent:
        values = scale_by_power_of_two(values, -exponent)
    mean = float(values.mean())
    distances = values - mean
    return mean, float(torch.dot(distances, distances)), float(torch.dot(values, values))


def unit_dims(ndim: int) -> tuple[int, ...]:
    """Return the dimensions along which the units of an activation may lie.

    Three dimensions are batch, channel, length or batch, token, feature. Of several, the one counts
    in which fewer units are dead.

    >>> unit_dims(4), unit_dims(3)
    ((1,), (1, 2))
    """
    return {0: (), 1: (0,), 3: (1, 2)}.get(ndim, (1,))


@without_grad
def sum_of_squares(values: Tensor) -> tuple[float, int]:
    """Return the sum of squares of ``values`` (float64 or complex128) as value * 2**exponent."""
    reals = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    parts = reals.reshape(-1)
    plain = float(torch.dot(parts, parts))
    if square_in_range(plain) or not parts.numel():
        return plain, 0
    largest = float(parts.abs().max())
    if not 0 < largest < math.inf:  # all are zero, or one is not finite
        return plain, 0
    exponent = exponent_of(largest)
    parts = scale_by_power_of_two(parts, -exponent)
    return float(torch.dot(parts, parts)), 2 * exponent


def scale_by_power_of_two(values: Tensor, exponent: int | Tensor) -> Tensor:
    """Return ``values * 2**exponent`` of real values; digits are lost only on underflow."""
    power = torch.as_tensor(exponent, device=values.device)
    half = power // 2  # in two steps: one power of two alone may be beyond the range
    first, second = (part.to(values.dtype).exp2() for part in (half, power - half))
    return values * first * second


def numpy_blocks(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """Yield the entries in row-major order as numpy's arrays; dtypes that it lacks as float32."""
    for block in _dense(tensor.detach()).reshape(-1).split(BLOCK):
        here = block.cpu().resolve_conj().resolve_neg()
        known = here.dtype in _IN_NUMPY or not here.is_floating_point()
        yield (here if known else here.to(torch.float32)).numpy()


def real_blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the entries of ``dense_real`` in blocks of one dimension, whose masks take little."""
    for block in _dense(tensor.detach()).reshape(-1).split(_MASKED):
        yield dense_real(block)


def dense_real(tensor: Tensor) -> Tensor:
    """A dense, real tensor of the same values: magnitude for complex, values for packed layouts."""
    dense = _dense(tensor)
    if dense.is_complex() and dense.device.type != "mps":
        dense = dense.to(torch.complex128)  # magnitudes of finite numbers then are finite
    return dense.abs() if dense.is_complex() else dense


def _dense(tensor: Tensor) -> Tensor:
    """A dense tensor of the same values, of a dtype that can be computed with."""
    tensor = as_dense(tensor)
    if tensor.dtype is torch.complex32:  # abs has no half-precision complex kernel on CPU
        tensor = tensor.to(torch.complex64)
    return tensor


def _widen(block: Tensor) -> Tensor:
    """The block, or the magnitude of it, in float64; on the CPU where the device (MPS) has none."""
    here = block.cpu() if block.device.type == "mps" else block
    # Complex numbers are widened first, so that the magnitude of finite ones is finite.
    return here.to(torch.complex128).abs() if here.is_complex() else here.to(torch.float64)


def _bounds(values: Tensor) -> tuple[float, float]:
    """The least and the largest entry in one pass; NaN if there is one."""
    low, high = torch.aminmax(values)
    return low.item(), high.item()


def _exact_bounds(block: Tensor) -> tuple[int, int]:
    """The least and the largest of integers or bools, without rounding."""
    # Torch lacks min of bools on some devices, and min of the wider unsigned integers.
    wide = block.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64)
    whole: Any = block.cpu().numpy() if wide else block
    return whole.min().item(), whole.max().item()


def euclidean_norm(x: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.linalg.vector_norm``, whose squares neither overflow nor vanish; differentiable."""
    if dtype is not None:
        x = x.to(dtype)
    return _computed_in_range(lambda t: torch.linalg.vector_norm(t, dim=dim), x, dim)


def deviation(x: Tensor) -> Tensor:
    """``x.std(correction=0)``, whose squares neither overflow nor vanish."""
    return _computed_in_range(lambda t: t.std(correction=0), x)


def _computed_in_range(of: Callable[[Tensor], Tensor], x: Tensor, dim: int | None = None) -> Tensor:
    """``of(x)``, or ``of`` of the tensor divided by a power of two, times that power."""
    plain = of(x)
    info = torch.finfo(torch.promote_types(plain.dtype, torch.float32))  # in which halves are added
    low, high = info.tiny**0.5 / info.eps, info.max**0.5
    known = plain.detach()
    if not x.numel() or bool(((known > low) & (known < high)).all()):
        return plain
    sizes = x.detach().abs()
    largest = sizes.max() if dim is None else sizes.amax(dim, keepdim=True)
    scalable = (largest > 0) & largest.isfinite()
    exponent = torch.where(scalable, largest.log2().ceil(), 0)
    # As two factors: one power of two alone may be beyond the range of the dtype.
    first, second = torch.exp2((exponent / 2).floor()), torch.exp2((exponent / 2).ceil())
    scaled = of(x / first / second)
    return scaled * first.reshape(scaled.shape) * second.reshape(scaled.shape)
