"""Statistics of a numpy array, as ``tensors/tensor_stats.py`` computes those of a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.stats import BLOCK, Moments, Stats, exponent_of, square_in_range


def summarize(pieces: Iterable[NDArray[Any]]) -> Stats:
    """Return the statistics of an array, given in blocks."""
    moments = Moments()
    numel, exact = 0, False
    for block in pieces:
        exact = block.dtype.kind in "biu"
        wide = magnitude(block).astype(np.float64)
        numel += wide.size
        moments.zeros += wide.size - int(np.count_nonzero(wide))
        finite = wide[np.isfinite(wide)]
        nan_count = int(np.isnan(wide).sum())
        moments.nan += nan_count
        moments.inf += wide.size - finite.size - nan_count
        if not finite.size:
            continue
        bounds = block if exact else finite
        low, high = bounds.min().item(), bounds.max().item()
        moments.add(finite.size, low, high, partial(_sums, finite))
    return moments.stats(numel, exact)


def _sums(finite: NDArray[np.float64], exponent: int) -> tuple[float, float, float]:
    """The sums that ``Moments.add`` asks for."""
    finite = scale(finite, -exponent)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):  # see ``square_in_range``
        mean = float(finite.mean())
        return mean, float(np.sum((finite - mean) ** 2)), float(np.dot(finite, finite))


def sum_of_squares(values: NDArray[Any]) -> tuple[float, int]:
    """Return the sum of the squares of finite numbers as ``value * 2**exponent``."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        plain = float(np.sum(np.square(np.abs(values))))
        if square_in_range(plain) or not values.any():
            return plain, 0
        exponent = exponent_of(float(np.abs(_parts(values)).max()))
        return float(np.sum(np.square(np.abs(scale(values, -exponent))))), 2 * exponent


def squared_distance(
    a: NDArray[Any], b: NDArray[Any], gap: NDArray[np.float64]
) -> tuple[float, int]:
    """Return the sum of the squares of ``gap``, which is |a - b|, as ``value * 2**exponent``.

    ``a`` and ``b`` are finite. If a distance is beyond the largest float, it is computed again from
    smaller numbers.
    """
    value, exponent = sum_of_squares(gap)
    if math.isfinite(value):
        return value, exponent
    value, exponent = sum_of_squares(a / 4 - b / 4)
    return value, exponent + 4


def scale(values: NDArray[Any], exponent: int) -> NDArray[Any]:
    """Return ``values * 2**exponent`` of float64 or complex128."""
    if not exponent:
        return values
    return np.ldexp(_parts(values), exponent).view(values.dtype)


def _parts(values: NDArray[Any]) -> NDArray[np.float64]:
    """Real and imaginary parts in alternation; real numbers as they are."""
    return np.ascontiguousarray(values).view(np.float64)


def blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the entries in row-major order, in flat blocks, each valid until the next one."""
    if not array.size:
        return
    flags = ["external_loop", "buffered"]
    with np.nditer(array, flags=flags, order="C", buffersize=BLOCK) as walk:  # type: ignore[call-overload]
        yield from walk


def magnitude(array: NDArray[Any]) -> NDArray[Any]:
    """Return the absolute values of complex numbers, in float64, and any other array as it is."""
    return np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else array
