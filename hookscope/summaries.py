"""Statistics of one of torch's tensors, in one pass over its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.stats import BLOCK, Moments, Stats

_IN_NUMPY = (torch.float16, torch.float32, torch.float64)


@torch.no_grad()
def summarize(tensor: Tensor) -> Stats:
    """Return the statistics of ``tensor``: any shape, dtype or device.

    Raises:
        TypeError: ``tensor`` lies on the meta device and so has no values.

    Example:
        >>> s = summarize(torch.tensor([0.0, 1.0, 2.0, float("nan")]))
        >>> s.mean, s.min, s.max, s.zeros, s.nan
        (1.0, 0.0, 2.0, 1, 1)
    """
    if tensor.is_meta:
        raise TypeError("a tensor on the meta device has a shape and no values")
    flat = plain(tensor.detach()).reshape(-1)
    exact = not flat.is_floating_point()
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
        mean = float(kept.mean())
        moments.merge(
            n=kept.numel(),
            mean=mean,
            spread=float(torch.sum((kept - mean) ** 2)),
            square=float(torch.dot(kept, kept)),
            low=bounds.min().item(),
            high=bounds.max().item(),
        )
    return moments.stats(flat.numel(), exact)


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
    """The block in float64, on the CPU where the device has no float64 (Apple's MPS)."""
    return (block.cpu() if block.device.type == "mps" else block).to(torch.float64)


def _exact(block: Tensor) -> Tensor | NDArray[Any]:
    """The block of integers or bools as something that has a smallest entry, without rounding."""
    # Torch has no minimum of bools everywhere, nor of the wider unsigned integers.
    wide = block.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64)
    return block.cpu().numpy() if wide else block
