"""How far two arrays lie apart, read once, block by block, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.diffing.result import Figures

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
        self.aa = self.bb = self.ab = self.noise = 0.0
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
            ratio = np.where(gap == 0, 0.0, gap / size)
            ratio[np.isinf(gap)] = np.inf  # where a is infinite, the quotient is no number
            self.relative = max(self.relative, float(ratio[~(nan_a | nan_b)].max()))
        finite = np.isfinite(a) & np.isfinite(b)
        a, b, gap = (x if finite.all() else x[finite] for x in (a, b, gap))
        # Not np.dot: for arrays as short as these its threads cost more than they save, and where
        # other processes use the processors too, twenty times as much.
        self.aa += float(np.sum(np.square(np.abs(a))))
        self.bb += float(np.sum(np.square(np.abs(b))))
        self.ab += float(np.sum((a * np.conj(b)).real))
        self.noise += float(np.sum(np.square(gap)))

    def figures(self) -> Figures:
        counts = (self.beyond, self.unequal, self.nan_a, self.nan_b, self.nan_both)
        if not self.seen:
            return Figures(None, None, None, None, *counts)
        return Figures(self.largest, self.relative, self._cosine(), self._snr(), *counts)

    def _cosine(self) -> float | None:
        length = math.sqrt(self.aa) * math.sqrt(self.bb)
        if not 0 < length < math.inf:
            return None
        return 1.0 if not self.unequal else max(-1.0, min(1.0, self.ab / length))

    def _snr(self) -> float | None:
        if not self.unequal:
            return math.inf
        if not 0 < self.noise < math.inf or self.aa == math.inf:
            return None  # all that differs is not finite, or too small or large to be squared
        return 10 * math.log10(self.aa / self.noise) if self.aa else -math.inf


def _gap(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """|a - b| in float64, 0 where both are the same number, and where that is."""
    same = np.asarray(a == b)
    if a.dtype.kind in "iu" and a.dtype == b.dtype:
        # Differences of whole numbers modulo 2**64: exact, where float64 has not the digits.
        high, low = (np.asarray(x(a, b)).astype(np.uint64) for x in (np.maximum, np.minimum))
        return (high - low).astype(np.float64), same
    gap = np.abs(_wide(a) - _wide(b))
    return np.where(same, 0.0, gap), same  # the difference of two infinities is no number


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
