"""Statistics of one tensor as data, and how those of its blocks become those of the whole.

A tensor is read once, in blocks that fit a processor's cache. Every block is widened to float64 and
merged into running moments, so half precision neither overflows nor loses its mean, and a tensor of
any size needs only one block of extra memory. ``tensors/tensor_stats.py`` reads torch's tensors so,
``numpy_stats.py`` numpy's. Squares of the largest and smallest floats are taken as ``squares.py``
says.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

BLOCK = 1 << 17  # elements widened at a time: 1 MiB of float64


@dataclass(frozen=True)
class Stats:
    """What one tensor holds, over its finite entries.

    ``mean``, ``std`` (population: divided by n), ``min``, ``max`` and ``norm`` (Euclidean) leave
    NaN and infinite entries out, and those are counted in ``nan`` and ``inf``: one NaN then does
    not hide what the rest looks like. All five are None when no entry is finite (an empty tensor,
    say): a zero that nothing was added up to would look like a result. Complex tensors are
    described by their magnitude. ``min`` and ``max`` of integers and bools are exact integers.
    A norm, or a magnitude, beyond the largest float64 is infinite.
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
        """Whether a tensor could have them: entries are counted, and ``min`` to ``max`` finite."""
        if min(self.numel, self.zeros, self.nan, self.inf) < 0:
            return False
        if self.min is None or self.max is None:
            return self.min is self.max
        return -math.inf < self.min <= self.max < math.inf

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dict; ``Stats(**d)`` is the way back."""
        return asdict(self)


class Moments:
    """Running statistics of blocks; ``zeros``, ``nan`` and ``inf`` are counted from outside."""

    def __init__(self) -> None:
        self.zeros = self.nan = self.inf = 0
        self._count, self._mean = 0, 0.0
        self._spread, self._square = ScaledSum(), ScaledSum()
        self._low: float | int = math.inf
        self._high: float | int = -math.inf

    def merge(
        self,
        n: int,
        mean: float,
        spread: float,
        square: float,
        low: float,
        high: float,
        exponent: int = 0,
    ) -> None:
        """Add a block's finite entries.

        The update is that of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm
        for computing sample variances" (1979).

        Args:
            n: how many there are, at least 1.
            mean: their mean.
            spread: sum of their squared distances from ``mean``.
            square: sum of their squares.
            low: the smallest.
            high: the largest.
            exponent: ``mean``, ``spread`` and ``square`` are those of the entries divided by
                2**exponent; ``low`` and ``high`` are not divided.
        """
        self._low, self._high = min(self._low, low), max(self._high, high)
        mean, total = self._bounded(ldexp(mean, exponent)), self._count + n
        delta = mean - self._mean
        self._spread.add(spread, 2 * exponent)
        if self._count:
            self._spread.add(*_between(mean, self._mean, self._count, n))
        step = delta * n / total
        if not math.isfinite(step):  # of two means that are nearly the largest float
            step = mean * (n / total) - self._mean * (n / total)
        self._mean = self._bounded(self._mean + step)
        self._square.add(square, 2 * exponent)
        self._count = total

    def stats(self, numel: int, exact: bool) -> Stats:
        """Return the statistics of all ``numel`` entries; ``exact`` for integers and bools."""
        if not self._count:
            return Stats(numel, None, None, None, None, None, self.zeros, self.nan, self.inf)
        low, high = (int(self._low), int(self._high)) if exact else (self._low, self._high)
        std, norm = self._spread.sqrt(self._count), self._square.sqrt()
        if math.isinf(std):  # rounded past the largest float; it is at most half the range
            std = high / 2 - low / 2
        return Stats(numel, self._mean, std, low, high, norm, self.zeros, self.nan, self.inf)

    def _bounded(self, mean: float) -> float:
        """A mean that was rounded past the largest float, brought back to the bounds."""
        return mean if math.isfinite(mean) else float(self._high if mean > 0 else self._low)


def _between(mean: float, other: float, n: int, m: int) -> tuple[float, int]:
    """What the distance of the means of ``n`` and of ``m`` entries adds to the spread of both."""
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
    """Whether a plain sum of squares is exact up to rounding: no square that counts was lost.

    >>> fits(25.0), fits(1e-300), fits(float("inf"))
    (True, False, False)
    """
    return _LEAST < square < _MOST


def exponent_of(largest: float) -> int:
    """Return ``e`` such that numbers up to ``largest`` are below 1 once divided by 2**e.

    >>> exponent_of(6.0), exponent_of(0.0)
    (3, 0)
    """
    return math.frexp(largest)[1]


def ldexp(value: float, exponent: int) -> float:
    """Return ``value * 2**exponent``; infinite where that is beyond float64.

    >>> scaled(0.75, 3), scaled(1.0, 1024)
    (6.0, inf)
    """
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


class ScaledSum:
    """A sum of numbers of any size, kept as ``value * 2**exponent``.

    As long as only numbers with the exponent 0 are added, ``value`` is their plain sum.

    Example:
        >>> total = ScaledSum()
        >>> total.add(9.0)
        >>> total.add(1.0, 4)
        >>> total.sqrt()
        5.0
    """

    def __init__(self) -> None:
        self.value, self.exponent = 0.0, 0

    def add(self, value: float, exponent: int = 0) -> None:
        """Add ``value * 2**exponent``."""
        if not value:
            return
        if not self.value:
            self.value, self.exponent = value, exponent
            return
        high = max(exponent, self.exponent)
        # What this rounds to zero is smaller than the rounding of the sum.
        self.value = ldexp(self.value, self.exponent - high) + ldexp(value, exponent - high)
        self.exponent = high

    def sqrt(self, count: int = 1) -> float:
        """Return the square root of the sum divided by ``count``."""
        odd = self.exponent % 2
        root = math.sqrt(ldexp(self.value, odd) / count)
        return ldexp(root, (self.exponent - odd) // 2)

    def log10(self) -> float:
        """Return the decimal logarithm of a positive sum."""
        return math.log10(self.value) + self.exponent * math.log10(2)

    def root_of_share(self, whole: ScaledSum) -> float:
        """Return the square root of this sum over ``whole``, both of them positive."""
        mantissa, exponent = math.frexp(self.value)
        other, less = math.frexp(whole.value)
        share = ScaledSum()
        share.add(mantissa / other, exponent + self.exponent - less - whole.exponent)
        return share.sqrt()
