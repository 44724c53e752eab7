"""Bins with fixed edges that cover all magnitudes: counts in them add up whoever counted.

Two kinds. Of ``histogram``: a few, the same for every layer. For quantiles: fine ones, read off a
float's exponent and the first bits of its fraction, 16 to each doubling, so that the middle of a
bin is within 1/32 of every value in it; magnitudes under 2**-20 count as zero. All of float64 has
its bins, and a number lies in the same one as float32 and as float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Exact in binary: 2**-14, 1.5 * 2**-14, ... 1.5 * 2**9, 2**10, and the same below zero.
_UP = [half * 2.0**power for power in range(-14, 10) for half in (1.0, 1.5)] + [1024.0]
EDGES = tuple([-edge for edge in reversed(_UP)] + _UP)

_BITS = 4  # of the fraction
_SUB = 1 << _BITS
_TINY = -20  # the power of two under which a magnitude counts as zero
TINY, SLACK = 2.0**_TINY, 1 / (2 * _SUB)


def histogram(parts: Tensor) -> Tensor:
    """Count, for each last dimension of ``parts``, the values in each of the bins of ``EDGES``.

    A value on an edge counts above it; NaN counts nowhere.

    Args:
        parts: (N, C, P).

    Returns:
        int32, (N, C, 99).
    """
    count = len(EDGES) + 1
    edges = torch.tensor(EDGES, device=parts.device, dtype=parts.dtype)
    places = torch.bucketize(parts, edges, right=True)
    places = torch.where(parts.isnan(), count, places)  # one bin more, cut off again
    found = counts(places.flatten(0, 1), count + 1)[:, :count]
    return found.reshape(*parts.shape[:2], count).int()


def counts(places: Tensor, width: int) -> Tensor:
    """Count how often each of 0 to ``width - 1`` is in each line of ``places``, (lines, width)."""
    lines = len(places)
    flat = places + width * torch.arange(lines, device=places.device).unsqueeze(1)
    return torch.bincount(flat.flatten(), minlength=lines * width).reshape(lines, width)


def fine(values: Tensor) -> Tensor:
    """The number of the fine bin of each finite value: 0 around zero, negative below.

    >>> fine(torch.tensor([0.0, 1.0, 1.06, 1.07, -1.0]))
    tensor([   0,  321,  321,  322, -321])
    """
    if values.dtype == torch.float64:
        whole, fraction, bias = torch.int64, 52, 1023
    else:
        values, whole, fraction, bias = values.float(), torch.int32, 23, 127
    base = (bias + _TINY) << _BITS
    bits = values.abs().view(whole) >> (fraction - _BITS)
    return torch.where(bits < base, 0, bits - base + 1).long() * values.sign().long()


def middles(numbers: Tensor) -> Tensor:
    """The middle of each fine bin, float64.

    >>> middles(torch.tensor([0, 321, -321]))
    tensor([ 0.0000,  1.0312, -1.0312], dtype=torch.float64)
    """
    steps = numbers.abs() - 1
    power = torch.div(steps, _SUB, rounding_mode="floor") + _TINY
    part = 1 + (steps % _SUB + 0.5) / _SUB
    size = torch.ldexp(part.double(), power)
    return torch.where(numbers == 0, 0.0, size * numbers.sign())
