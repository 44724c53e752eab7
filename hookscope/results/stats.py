"""Statistics of one tensor as data, and how the statistics of its blocks are merged.

A tensor is read once, in blocks that fit into a processor's cache. Every block is widened to
float64 and merged into running moments, so half precision neither overflows nor loses its mean, and
a tensor of any size needs only one block of extra memory. ``tensors/tensor_stats.py`` reads
tensors in this way, ``numpy_stats.py`` arrays.

Sums of squares cover the whole range of float64, in which 1e200 squared is infinite and 1e-200
squared is 0. Numbers are squared as they are. If the sum shows that squares may have left the
range, the numbers are divided by a power of two first, which changes no digit, and the sum carries
that power.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

BLOCK = 1 << 17  # elements widened at a time: 1 MiB of float64


@dataclass(frozen=True)
class Stats:
    """Statistics of the finite entries of one tensor.

    ``mean``, ``std`` (population: divided by n), ``min``, ``max`` and ``norm`` (Euclidean) ignore
    NaN and infinite entries, which are counted in ``nan`` and ``inf``, so that one NaN does not
    hide the rest. All five are None if no entry is finite (such as in an empty tensor). Complex
    tensors are described by their magnitude. ``min`` and ``max`` of integers and bools are exact
    integers. A norm or magnitude beyond the largest float64 is infinite.
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

    def are_possible(self) -> bool:
        """Whether a tensor can have them: counts are not negative, ``min`` and ``max`` finite."""
        if min(self.numel, self.zeros, self.nan, self.inf) < 0:
            return False
        if self.min is None or self.max is None:
            return self.min is self.max
        return -math.inf < self.min <= self.max < math.inf

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict; ``Stats(**d)`` is the inverse."""
        return asdict(self)


class Moments:
    """Running statistics of blocks; the caller counts ``zeros``, ``nan`` and ``inf``."""

    def __init__(self) -> None:
        self.zeros = self.nan = self.inf = 0
        self._count, self._mean = 0, 0.0
        self._spread, self._square = ScaledSum(), ScaledSum()
        self._low: float | int = math.inf
        self._high: float | int = -math.inf

    def add(
        self, n: int, low: float, high: float, sums_of: Callable[[int], tuple[float, float, float]]
    ) -> None:
        """Add a block's finite entries.

        ``sums_of(exponent)`` returns the mean, the sum of squared distances from it and the sum of
        squares of the entries divided by 2**exponent. The update follows Chan, Golub and LeVeque,
        "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
        """
        self._low, self._high = min(self._low, low), max(self._high, high)
        exponent = 0
        mean, spread, square = sums_of(0)
        if not square_in_range(square) and (low or high):
            exponent = exponent_of(max(abs(low), abs(high)))
            mean, spread, square = sums_of(exponent)
        mean, total = self._bounded(ldexp(mean, exponent)), self._count + n
        delta = mean - self._mean
        self._spread.add(spread, 2 * exponent)
        if self._count:
            self._spread.add(*_between(mean, self._mean, self._count, n))
        step = delta * n / total
        if math.isfinite(step):
            merged = self._mean + step
        else:  # the distance of two means of nearly the largest float
            merged = self._mean * (self._count / total) + mean * (n / total)
        self._mean = self._bounded(merged)
        self._square.add(square, 2 * exponent)
        self._count = total

    def stats(self, numel: int, exact: bool) -> Stats:
        """Return the statistics of all ``numel`` entries; ``exact`` for integers and bools."""
        if not self._count:
            return Stats(numel, None, None, None, None, None, self.zeros, self.nan, self.inf)
        low, high = (int(self._low), int(self._high)) if exact else (self._low, self._high)
        std, norm = self._spread.sqrt(self._count), self._square.sqrt()
        if math.isinf(std):  # rounded up beyond the largest float; at most half the range
            std = high / 2 - low / 2
        return Stats(numel, self._mean, std, low, high, norm, self.zeros, self.nan, self.inf)

    def _bounded(self, mean: float) -> float:
        """The mean, clamped to the bounds if it was rounded beyond the largest float."""
        return mean if math.isfinite(mean) else float(self._high if mean > 0 else self._low)


def _between(mean: float, other: float, n: int, m: int) -> tuple[float, int]:
    """The spread between the means of ``n`` and ``m`` entries, as value and power of two."""
    delta = mean - other
    plain = delta * delta * n * m / (n + m)
    if square_in_range(plain) or not delta:
        return plain, 0
    halved = int(math.isinf(delta))
    delta = mean / 2 - other / 2 if halved else delta
    exponent = exponent_of(delta)
    delta = ldexp(delta, -exponent)
    return delta * delta * n * m / (n + m), 2 * (exponent + halved)


_LEAST, _MOST = 2.0**-800, 2.0**1000


def square_in_range(square: float) -> bool:
    """Whether a plain sum of squares is exact up to rounding: no significant square was lost."""
    return _LEAST < square < _MOST


def exponent_of(largest: float) -> int:
    """Return ``e`` such that numbers up to ``largest`` are below 1 when divided by 2**e."""
    return math.frexp(largest)[1]


def ldexp(value: float, exponent: int) -> float:
    """Return ``value * 2**exponent``; infinite if that is beyond float64."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


class ScaledSum:
    """A sum of numbers of any size, stored as ``value * 2**exponent``."""

    def __init__(self) -> None:
        self.value, self.exponent = 0.0, 0

    def add(self, value: float, exponent: int = 0) -> None:
        """Add ``value * 2**exponent``."""
        if not value:
            return
        if exponent == self.exponent:
            self.value += value
            return
        if not self.value:
            self.value, self.exponent = value, exponent
            return
        high = max(exponent, self.exponent)
        # A number that becomes zero here is smaller than the rounding error of the sum.
        self.value = ldexp(self.value, self.exponent - high) + ldexp(value, exponent - high)
        self.exponent = high

    def sqrt(self, count: int = 1) -> float:
        """Return the square root of the sum divided by ``count``."""
        parity = self.exponent % 2
        root = math.sqrt(ldexp(self.value, parity) / count)
        return ldexp(root, (self.exponent - parity) // 2)

    def log10(self) -> float:
        """Return the decimal logarithm of a positive sum."""
        return math.log10(self.value) + self.exponent * math.log10(2)

    def root_of_share(self, whole: ScaledSum) -> float:
        """Return the square root of this sum over ``whole``; both are positive."""
        mantissa, exponent = math.frexp(self.value)
        whole_mantissa, whole_exponent = math.frexp(whole.value)
        share = ScaledSum()
        exponent += self.exponent - whole_exponent - whole.exponent
        share.add(mantissa / whole_mantissa, exponent)
        return share.sqrt()
