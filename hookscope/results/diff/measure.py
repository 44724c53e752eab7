"""How far two arrays lie apart, read once, block by block, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.diff.result import Figures
from hookscope.results.numpy_stats import distance_squares, scale, squares
from hookscope.results.squares import ScaledSum, scaled

Blocks = Iterable[NDArray[Any]]


def measure(a: Blocks, b: Blocks, atol: float, rtol: float, equal_nan: bool = False) -> Figures:
    """Return how two tensors differ that are given in blocks of the same lengths.

    An entry is within tolerance as for ``torch.isclose(b, a)``: equal, or finite and
    |a - b| <= atol + rtol * |a|. The signal-to-noise ratio is that of quantization,
    10 log10(power of the signal / power of the error), as in Oppenheim and Schafer, "Discrete-Time
    Signal Processing" (3rd ed., section 4.8); a is the signal, a - b the error.

    Example:
        >>> found = measure([np.array([3.0, 4.0])], [np.array([3.0, 4.5])], 0.1, 0)
        >>> found.max_abs, found.max_rel, round(found.snr, 6), found.beyond
        (0.5, 0.125, 20.0, 1)
    """
    sums = _Sums()
    with np.errstate(all="ignore"):
        for one, two in zip(a, b, strict=True):
            sums.add(one, two, atol, rtol, equal_nan)
    return sums.figures()


class _Sums:
    """Running sums and largest values of the blocks so far."""

    def __init__(self) -> None:
        self.beyond = self.unequal = self.nan_a = self.nan_b = self.nan_both = 0
        self.largest = self.relative = 0.0
        self.aa, self.bb, self.ab, self.noise = (ScaledSum() for _ in range(4))
        self.seen = False  # a pair that can be compared

    def add(
        self, a: NDArray[Any], b: NDArray[Any], atol: float, rtol: float, equal_nan: bool
    ) -> None:
        gap, same = _gap(a, b)
        a, b = _wide(a), _wide(b)
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
        told = gap[~(nan_a | nan_b)]
        if told.size:
            self.seen = True
            self.largest = max(self.largest, float(told.max()))
            ratio = _ratio(a, b, gap, size)
            self.relative = max(self.relative, float(ratio[~(nan_a | nan_b)].max()))
        finite = np.isfinite(a) & np.isfinite(b)
        a, b, gap = (x if finite.all() else x[finite] for x in (a, b, gap))
        # Not np.dot: for arrays as short as these its threads cost more than they save, and where
        # other processes use the processors too, twenty times as much.
        (aa, more), (bb, less) = squares(a), squares(b)
        self.aa.add(aa, more)
        self.bb.add(bb, less)
        more, less = more // 2, less // 2
        product = scale(a, -more) * np.conj(scale(b, -less))
        self.ab.add(float(np.sum(product.real)), more + less)
        self.noise.add(*distance_squares(a, b, gap))

    def figures(self) -> Figures:
        counts = (self.beyond, self.unequal, self.nan_a, self.nan_b, self.nan_both)
        if not self.seen:
            return Figures(None, None, None, None, *counts)
        return Figures(self.largest, self.relative, self._cosine(), self._snr(), *counts)

    def _cosine(self) -> float | None:
        if not self.aa.value or not self.bb.value:
            return None
        if not self.unequal:
            return 1.0
        length = math.sqrt(self.aa.value) * math.sqrt(self.bb.value)
        power = self.ab.exponent - (self.aa.exponent + self.bb.exponent) // 2
        return max(-1.0, min(1.0, scaled(self.ab.value / length, power)))

    def _snr(self) -> float | None:
        if not self.unequal:
            return math.inf
        if not self.noise.value:
            return None  # all that differs is not finite
        return 10 * (self.aa.log10() - self.noise.log10()) if self.aa.value else -math.inf


def _gap(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """|a - b| in float64, 0 where both are the same number, and where that is."""
    same = np.asarray(a == b)
    if a.dtype.kind in "iu" and a.dtype == b.dtype:
        # Differences of whole numbers modulo 2**64: exact, where float64 has not the digits.
        high, low = (np.asarray(x(a, b)).astype(np.uint64) for x in (np.maximum, np.minimum))
        return (high - low).astype(np.float64), same
    gap = np.abs(_wide(a) - _wide(b))
    return np.where(same, 0.0, gap), same  # the difference of two infinities is no number


def _ratio(
    a: NDArray[Any], b: NDArray[Any], gap: NDArray[np.float64], size: NDArray[np.float64]
) -> NDArray[np.float64]:
    """|a - b| / |a| of each entry; 0 where both are the same number."""
    ratio = np.where(gap == 0, 0.0, gap / size)
    infinite = np.isinf(gap)
    if infinite.any():
        # Where a is infinite, the quotient is NaN. Where a and b are finite, only their distance is
        # beyond the largest float.
        ratio[infinite] = np.inf
        far = infinite & np.isfinite(a) & np.isfinite(b)
        ratio[far] = np.abs(a[far] / 4 - b[far] / 4) / np.abs(a[far] / 4)
    return ratio


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
