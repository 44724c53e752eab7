"""Running sums over blocks of two tensors, of which the figures of their comparison are made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.diff_result import ErrorMetrics
from hookscope.results.numpy_stats import scale, squared_distance, sum_of_squares
from hookscope.results.stats import ScaledSum, ldexp


class ErrorSums:
    """Running sums and maxima over blocks of A and B."""

    def __init__(self) -> None:
        self.beyond = self.unequal = self.nan_a = self.nan_b = self.nan_both = 0
        self.largest = self.relative = 0.0
        self.aa, self.bb, self.ab, self.noise = (ScaledSum() for _ in range(4))
        self.comparable = False

    def add(
        self, a: NDArray[Any], b: NDArray[Any], atol: float, rtol: float, equal_nan: bool
    ) -> None:
        """Add a block of each tensor, of the same length and of one dimension."""
        gap, same = _gap(a, b)
        a, b = double_precision(a), double_precision(b)
        nan_a, nan_b = np.isnan(a), np.isnan(b)
        both = nan_a & nan_b
        self.nan_a += int(np.sum(nan_a & ~nan_b))
        self.nan_b += int(np.sum(nan_b & ~nan_a))
        self.nan_both += int(np.sum(both))
        if equal_nan:
            same = same | both
        size = np.abs(a)
        close = same | (np.isfinite(gap) & (gap <= atol + rtol * size))
        self.unequal += int(np.sum(~same))
        self.beyond += int(np.sum(~close))
        numbers = ~(nan_a | nan_b)
        if numbers.any():
            self.comparable = True
            self.largest = max(self.largest, float(gap[numbers].max()))
            ratio = _ratio(a, b, gap, size)
            self.relative = max(self.relative, float(ratio[numbers].max()))
        finite = np.isfinite(a) & np.isfinite(b)
        a, b, gap = (x if finite.all() else x[finite] for x in (a, b, gap))
        # Not np.dot: for short arrays its threads cost more than they save, and twenty times as
        # much if other processes use the processors.
        (aa, exponent_a), (bb, exponent_b) = sum_of_squares(a), sum_of_squares(b)
        self.aa.add(aa, exponent_a)
        self.bb.add(bb, exponent_b)
        half_a, half_b = exponent_a // 2, exponent_b // 2
        product = scale(a, -half_a) * np.conj(scale(b, -half_b))
        self.ab.add(float(np.sum(product.real)), half_a + half_b)
        self.noise.add(*squared_distance(a, b, gap))

    def add_products(self, aa: float, bb: float, ab: float, noise: float) -> None:
        """Add sums of products of finite entries, which were computed elsewhere."""
        self.comparable = True
        self.aa.add(aa)
        self.bb.add(bb)
        self.ab.add(ab)
        self.noise.add(noise)

    def merge(self, other: ErrorSums) -> None:
        """Add the sums of other blocks."""
        for name in ("beyond", "unequal", "nan_a", "nan_b", "nan_both"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)
        self.relative = max(self.relative, other.relative)
        self.comparable |= other.comparable
        for mine, theirs in (
            (self.aa, other.aa),
            (self.bb, other.bb),
            (self.ab, other.ab),
            (self.noise, other.noise),
        ):
            mine.add(theirs.value, theirs.exponent)

    def metrics(self) -> ErrorMetrics:
        """Return the figures."""
        counts = (self.beyond, self.unequal, self.nan_a, self.nan_b, self.nan_both)
        if not self.comparable:
            return ErrorMetrics(None, None, None, None, *counts)
        return ErrorMetrics(self.largest, self.relative, self.cosine(), self._snr(), *counts)

    def cosine(self) -> float | None:
        """Return the cosine of the angle between A and B; None if either is zero."""
        if not self.aa.value or not self.bb.value:
            return None
        if not self.unequal:
            return 1.0
        length = math.sqrt(self.aa.value) * math.sqrt(self.bb.value)
        power = self.ab.exponent - (self.aa.exponent + self.bb.exponent) // 2
        return max(-1.0, min(1.0, ldexp(self.ab.value / length, power)))

    def _snr(self) -> float | None:
        if not self.unequal:
            return math.inf
        if not self.noise.value:
            return None  # only entries that are not finite differ
        return 10 * (self.aa.log10() - self.noise.log10()) if self.aa.value else -math.inf


def _gap(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """|a - b| in float64, 0 for the same number, and a mask of the same numbers."""
    same = np.asarray(a == b)
    if a.dtype.kind in "iu" and a.dtype == b.dtype:
        # Differences of integers modulo 2**64 are exact; float64 has too few digits.
        high, low = (np.asarray(x(a, b)).astype(np.uint64) for x in (np.maximum, np.minimum))
        return (high - low).astype(np.float64), same
    gap = np.abs(double_precision(a) - double_precision(b))
    return np.where(same, 0.0, gap), same  # the difference of equal infinities is NaN


def _ratio(
    a: NDArray[Any], b: NDArray[Any], gap: NDArray[np.float64], size: NDArray[np.float64]
) -> NDArray[np.float64]:
    """|a - b| / |a| of each entry; 0 for the same number."""
    ratio = np.where(gap == 0, 0.0, gap / size)
    infinite = np.isinf(gap)
    if infinite.any():
        # If a is infinite, the quotient is NaN. If a and b are finite, their distance is beyond the
        # largest float.
        ratio[infinite] = np.inf
        far = infinite & np.isfinite(a) & np.isfinite(b)
        ratio[far] = np.abs(a[far] / 4 - b[far] / 4) / np.abs(a[far] / 4)
    return ratio


def double_precision(array: NDArray[Any]) -> NDArray[Any]:
    """Return the values of an array as float64, or as complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
