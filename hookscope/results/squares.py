"""Sums of squares over the whole range of float64, where 1e200 squared is infinite and 1e-200 is 0.

Numbers are squared as they are. Only where the sum shows that squares may have left the range are
they divided by a power of two first, which changes no digit, and the sum then carries that power.
"""

from __future__ import annotations

import math

_LEAST, _MOST = 2.0**-800, 2.0**1000


def fits(square: float) -> bool:
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


def scaled(value: float, exponent: int) -> float:
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
        self.value = scaled(self.value, self.exponent - high) + scaled(value, exponent - high)
        self.exponent = high

    def sqrt(self, count: int = 1) -> float:
        """Return the square root of the sum divided by ``count``."""
        odd = self.exponent % 2
        root = math.sqrt(scaled(self.value, odd) / count)
        return scaled(root, (self.exponent - odd) // 2)

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
