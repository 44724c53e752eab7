"""Statistics of one of torch's tensors, in one pass over its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.errors import HookscopeError
from hookscope.results.squares import exponent_of, fits
from hookscope.results.stats import BLOCK, Moments, Stats
from hookscope.tensors.nested import unreadable

_IN_NUMPY = (torch.float16, torch.float32, torch.float64)


@torch.no_grad()
def summarize(tensor: Tensor) -> Stats:
    """Return the statistics of ``tensor``: any shape, dtype or device.

    Raises:
        HookscopeError: its values cannot be read: see ``tensors.unreadable``.

    Example:
        >>> s = summarize(torch.tensor([0.0, 1.0, 2.0, float("nan")]))
        >>> s.mean, s.min, s.max, s.zeros, s.nan
        (1.0, 0.0, 2.0, 1, 1)
    """
    reason = "nested: its components have them" if tensor.is_nested else unreadable(tensor)
    if reason:
        raise HookscopeError(
            f"This tensor has no statistics: it is {reason}.",
            "Record the plain tensors that it is made of.",
        )
    flat = _dense(tensor.detach()).reshape(-1)
    exact = not (flat.is_floating_point() or flat.is_complex())
    moments = Moments()
    for block in flat.split(BLOCK):
        wide = _widen(block)
        moments.zeros += wide.numel() - int(torch.count_nonzero(wide))
        kept = wide
        if not exact:
            finite = torch.isfinite(wide)
            if not bool(finite.all()):
                nan_here = int(torch.isnan(wide).sum())
                kept = wide[finite]
                moments.nan += nan_here
                moments.inf += wide.numel() - kept.numel() - nan_here
        if not kept.numel():
            continue
        bounds = _exact(block) if exact else kept
        low, high = bounds.min().item(), bounds.max().item()
        sums, exponent = _sums(kept), 0
        if not fits(sums[-1]) and (low or high):
            exponent = exponent_of(max(abs(low), abs(high)))
            sums = _sums(scale(kept, -exponent))
        moments.merge(kept.numel(), *sums, low, high, exponent)
    return moments.stats(flat.numel(), exact)


def _sums(kept: Tensor) -> tuple[float, float, float]:
    """The mean, the sum of squared distances from it, and the sum of squares."""
    mean = float(kept.mean())
    return mean, float(torch.sum((kept - mean) ** 2)), float(torch.dot(kept, kept))


@torch.no_grad()
def squares(values: Tensor) -> tuple[float, int]:
    """Return the sum of the squares of ``values`` (float64 or complex128) as value * 2**exponent.

    NaN or infinite, with the exponent 0, where an entry is.

    Example:
        >>> squares(torch.tensor([3.0, 4.0], dtype=torch.float64))
        (25.0, 0)
    """
    parts = (torch.view_as_real(values.resolve_conj()) if values.is_complex() else values).reshape(
        -1
    )
    plain = float(torch.dot(parts, parts))
    if fits(plain) or not parts.numel():
        return plain, 0
    largest = float(parts.abs().max())
    if not 0 < largest < math.inf:  # all are zero, or one is not finite
        return plain, 0
    exponent = exponent_of(largest)
    parts = scale(parts, -exponent)
    return float(torch.dot(parts, parts)), 2 * exponent


def scale(values: Tensor, exponent: int | Tensor) -> Tensor:
    """Return real ``values * 2**exponent``; digits are lost only below the range of the dtype."""
    power = torch.as_tensor(exponent, device=values.device)
    half = power // 2  # in two steps: one power of two alone may be beyond the range
    first, second = (part.to(values.dtype).exp2() for part in (half, power - half))
    return values * first * second


@torch.no_grad()
def blocks(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """Yield the entries of ``tensor`` in row-major order as numpy's arrays of one dimension.

    They are of the tensor's dtype; what numpy has not (bfloat16, float8) is float32, without a
    change of value.

    Example:
        >>> [block.tolist() for block in blocks(torch.ones(2, 2, dtype=torch.bfloat16))]
        [[1.0, 1.0, 1.0, 1.0]]
    """
    for block in _dense(tensor.detach()).reshape(-1).split(BLOCK):
        here = block.cpu().resolve_conj().resolve_neg()
        known = here.dtype in _IN_NUMPY or not here.is_floating_point()
        yield (here if known else here.to(torch.float32)).numpy()


def plain(tensor: Tensor) -> Tensor:
    """A dense, real tensor of the same values: magnitude for complex, values for packed layouts."""
    dense = _dense(tensor)
    if dense.is_complex() and dense.device.type != "mps":
        dense = dense.to(torch.complex128)  # magnitudes of finite numbers then are finite
    return dense.abs() if dense.is_complex() else dense


def _dense(tensor: Tensor) -> Tensor:
    """A dense tensor of the same values, of a dtype that can be computed with."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype is torch.complex32:  # abs has no half-precision complex kernel on CPU
        tensor = tensor.to(torch.complex64)
    return tensor


def _widen(block: Tensor) -> Tensor:
    """The block in float64, on the CPU where the device has no float64 (Apple's MPS).

    Complex numbers are widened before their magnitude is taken: that of finite ones is then finite.
    """
    here = block.cpu() if block.device.type == "mps" else block
    return here.to(torch.complex128).abs() if here.is_complex() else here.to(torch.float64)


def _exact(block: Tensor) -> Tensor | NDArray[Any]:
    """The block of integers or bools as something that has a smallest entry, without rounding."""
    # Torch has no minimum of bools everywhere, nor of the wider unsigned integers.
    wide = block.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64)
    return block.cpu().numpy() if wide else block
