"""Statistics of one tensor, in one pass over its memory.

The tensor is read once, in blocks that fit a processor's cache; every block is widened to float64
and merged into running moments, so half precision neither overflows nor loses its mean, and a
tensor of any size needs only one block of extra memory.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 1 << 17  # elements widened at a time: 1 MiB of float64


@dataclass(frozen=True)
class Stats:
    """What one tensor holds, over its finite entries.

    ``mean``, ``std`` (population: divided by n), ``min``, ``max`` and ``norm`` (Euclidean) leave
    NaN and infinite entries out, and those are counted in ``nan`` and ``inf``: one NaN then does
    not hide what the rest looks like. All five are None when no entry is finite (an empty tensor,
    say): a zero that nothing was added up to would look like a result. Complex tensors are
    described by their magnitude. ``min`` and ``max`` of integers and bools are exact integers.
    """

    numel: int
    mean: float | None
    std: float | None
    min: float | int | None
    max: float | int | None
    norm: float | None
    zeros: int
    nan: int
    inf: int

    @property
    def zero_share(self) -> float:
        """Share of entries that are exactly zero, from 0 to 1 (0 for an empty tensor)."""
        return self.zeros / self.numel if self.numel else 0.0

    @property
    def absmax(self) -> float | int | None:
        """Largest absolute value among the finite entries."""
        if self.min is None or self.max is None:
            return None
        return max(abs(self.min), abs(self.max))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict; ``Stats(**d)`` is the way back."""
        return asdict(self)


@torch.no_grad()
def summarize(tensor: Tensor) -> Stats:
    """Return the statistics of ``tensor``: any shape, dtype or device.

    Moments of blocks are merged by the update of Chan, Golub and LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances" (1979).

    Raises:
        TypeError: ``tensor`` lies on the meta device and so has no values.

    Example:
        >>> s = summarize(torch.tensor([0.0, 1.0, 2.0, float("nan")]))
        >>> s.mean, s.min, s.max, s.zeros, s.nan
        (1.0, 0.0, 2.0, 1, 1)
    """
    if tensor.is_meta:
        raise TypeError("a tensor on the meta device has a shape and no values")
    flat = _plain(tensor.detach()).reshape(-1)
    exact = not flat.is_floating_point()
    count, mean, spread, square = 0, 0.0, 0.0, 0.0
    zeros = nan = inf = 0
    low: float | int = math.inf
    high: float | int = -math.inf
    for block in flat.split(BLOCK):
        wide = _widen(block)
        zeros += wide.numel() - int(torch.count_nonzero(wide))
        kept = wide
        if not exact:
            finite = torch.isfinite(wide)
            if not bool(finite.all()):
                nan_here = int(torch.isnan(wide).sum())
                kept = wide[finite]
                nan += nan_here
                inf += wide.numel() - kept.numel() - nan_here
        if not kept.numel():
            continue
        bounds = block if exact and block.dtype is not torch.bool else kept
        low = min(low, bounds.min().item())
        high = max(high, bounds.max().item())
        n = kept.numel()
        block_mean = float(kept.mean())
        block_spread = float(torch.sum((kept - block_mean) ** 2))
        delta = block_mean - mean
        total = count + n
        spread += block_spread + delta * delta * count * n / total
        mean += delta * n / total
        square += float(torch.dot(kept, kept))
        count = total
    if not count:
        return Stats(flat.numel(), None, None, None, None, None, zeros, nan, inf)
    if exact:
        low, high = int(low), int(high)
    std, norm = math.sqrt(spread / count), math.sqrt(square)
    return Stats(flat.numel(), mean, std, low, high, norm, zeros, nan, inf)


def _plain(tensor: Tensor) -> Tensor:
    """A dense, real tensor of the same values: magnitude for complex, values for packed layouts."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype is torch.complex32:  # abs has no half-precision complex kernel on CPU
        tensor = tensor.to(torch.complex64)
    return tensor.abs() if tensor.is_complex() else tensor


def _widen(block: Tensor) -> Tensor:
    """The block in float64, on the CPU where the device has no float64 (Apple's MPS)."""
    return (block.cpu() if block.device.type == "mps" else block).to(torch.float64)
