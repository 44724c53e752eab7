"""How two tensors differ, from running sums over blocks of both, in float64.

``ErrorSums`` takes any dtype and any number. ``ChangeSums`` adds windows of finite numbers of
narrow dtypes, as most tensors have, with fewer operations and in memory that is used again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.diff_result import ErrorMetrics
from hookscope.results.numpy_stats import scale, squared_distance, sum_of_squares
from hookscope.results.stats import ScaledSum, ldexp, square_in_range

WINDOW = 1 << 15  # entries widened at a time: both windows and their difference fill 768 KiB
_ROW = 1 << 13  # entries of one product of vectors; BLAS starts threads for more than 10,000
_ALIKE = 1e4  # ratio of squared norms up to which their sum has the digits of their product
_WORDS = (8, 4, 2, 1)
Blocks = Iterable[NDArray[Any]]


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
        close = same | is_close(gap, size, atol, rtol)
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
        self.aa.add(other.aa.value, other.aa.exponent)
        self.bb.add(other.bb.value, other.bb.exponent)
        self.ab.add(other.ab.value, other.ab.exponent)
        self.noise.add(other.noise.value, other.noise.exponent)

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


def is_close(
    gap: NDArray[np.float64], size: NDArray[np.float64], atol: float, rtol: float
) -> NDArray[np.bool_]:
    """Return which |a - b| of entries that are not the same are within the tolerance."""
    return np.isfinite(gap) & (gap <= atol + rtol * size)


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


@dataclass(frozen=True)
class ChangeMeasures:
    """How the weights of B differ from those of A, over all their entries.

    Sums are computed in float64, over the entries that are finite in both. A measure that is not
    defined is None.
    """

    distance: float | None
    norm_change: float | None
    cosine: float | None
    largest: float | None
    norms: tuple[float, float]
    changed: int
    beyond: int
    nan_a: int
    nan_b: int
    nan_both: int

    @property
    def from_zero(self) -> bool:
        """Whether A is zero and B is not, so that no relative change is defined."""
        return self.norms[0] == 0 < self.norms[1]


class ChangeSums:
    """Running sums over blocks of A and B; entries match if |a - b| <= atol + rtol * |a|."""

    def __init__(self, atol: float, rtol: float, equal_nan: bool = True) -> None:
        self._atol, self._rtol, self._equal_nan = atol, rtol, equal_nan
        self._sums = ErrorSums()
        self._scratch: list[NDArray[np.float64]] = []

    def add(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        """Add a block of each tensor, of the same length and of one dimension."""
        with np.errstate(all="ignore"):
            for start in range(0, len(a), WINDOW):
                self._add_window(a[start : start + WINDOW], b[start : start + WINDOW])

    def merge(self, other: ChangeSums) -> None:
        """Add the sums of other tensors."""
        self._sums.merge(other._sums)

    def metrics(self) -> ErrorMetrics:
        """Return the figures of all blocks so far."""
        return self._sums.metrics()

    def measures(self) -> ChangeMeasures:
        """Return the measures of all blocks so far."""
        sums = self._sums
        return ChangeMeasures(
            _root_of_share(sums.noise, sums.aa),
            None if not sums.aa.value else sums.bb.root_of_share(sums.aa) - 1,
            sums.cosine(),
            sums.largest if sums.comparable else None,
            (sums.aa.sqrt(), sums.bb.sqrt()),
            sums.unequal,
            sums.beyond,
            sums.nan_a,
            sums.nan_b,
            sums.nan_both,
        )

    def _add_window(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        if not (_is_narrow(a.dtype) and _is_narrow(b.dtype)) or not self._add_plain(a, b):
            self._sums.add(a, b, self._atol, self._rtol, self._equal_nan)

    def _add_plain(self, a: NDArray[Any], b: NDArray[Any]) -> bool:
        """Add a window of finite numbers whose squares are in range; False for any other."""
        sums = self._sums
        wide_a, wide_b, gap = self._scratch_of(len(a))
        np.copyto(wide_a, a)
        aa = _product(wide_a, wide_a)
        if _have_same_bits(a, b):
            if not _is_usable(aa, wide_a):
                return False
            sums.add_products(aa, aa, aa, 0.0)
            return True
        np.copyto(wide_b, b)
        np.subtract(wide_a, wide_b, out=gap)
        bb, noise = _product(wide_b, wide_b), _product(gap, gap)
        if not (_is_usable(aa, wide_a) and _is_usable(bb, wide_b) and _is_usable(noise, gap)):
            return False
        # |a - b|^2 = |a|^2 - 2 ab + |b|^2, unless digits of ab are lost in the larger square.
        alike = bb / _ALIKE < aa < bb * _ALIKE
        ab = (aa - noise + bb) / 2 if alike else _product(wide_a, wide_b)
        sums.add_products(aa, bb, ab, noise)
        changed = int(np.count_nonzero(a != b))
        sums.unequal += changed
        if not changed:  # but for the sign of a zero
            return True
        np.abs(gap, out=gap)
        np.abs(wide_a, out=wide_a)
        sums.largest = max(sums.largest, float(gap.max()))
        if self._atol or self._rtol:
            limit = np.multiply(wide_a, self._rtol, out=wide_b)
            limit += self._atol
            changed = int(np.count_nonzero(gap > limit))
        sums.beyond += changed
        ratio = np.divide(gap, wide_a, out=gap)  # NaN where both are zero
        sums.relative = max(sums.relative, float(np.fmax.reduce(ratio)))
        return True

    def _scratch_of(self, count: int) -> list[NDArray[np.float64]]:
        """Three arrays of this length, in memory that is used again."""
        if not self._scratch or len(self._scratch[0]) < count:
            self._scratch = [np.empty(count) for _ in range(3)]
        return [array[:count] for array in self._scratch]


def _is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether float64 holds every number of a dtype, so only equal numbers differ by 0."""
    return dtype.kind in "fb" or (dtype.kind in "iu" and dtype.itemsize <= 4)


def _is_usable(squares: float, values: NDArray[np.float64]) -> bool:
    """Whether a sum of squares is finite and has lost none of them."""
    return square_in_range(squares) or (squares == 0 and not values.any())


def _have_same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.dtype != b.dtype:
        return False
    word = next(size for size in _WORDS if a.nbytes % size == 0)
    words_a, words_b = a.view(f"u{word}"), b.view(f"u{word}")
    return bool(words_a[0] == words_b[0]) and np.array_equal(words_a, words_b)


def _product(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """The sum of the products of two vectors, without threads of BLAS."""
    whole = len(a) - len(a) % _ROW
    rest = float(np.dot(a[whole:], b[whole:])) if whole < len(a) else 0.0
    if not whole:
        return rest
    rows = np.matmul(a[:whole].reshape(-1, 1, _ROW), b[:whole].reshape(-1, _ROW, 1))
    return rest + float(rows.sum())


def _root_of_share(part: ScaledSum, whole: ScaledSum) -> float | None:
    if not part.value:
        return 0.0
    return part.root_of_share(whole) if whole.value else math.inf


def measure_same(a: Blocks, b: Blocks) -> ErrorMetrics | None:
    """Return the figures of tensors of one dtype whose entries are all equal; else None.

    It ends at the first window that differs. The result is also None if no entry is finite and not
    zero, because the cosine is not defined then.
    """
    has_length = False
    for block_a, block_b in zip(a, b, strict=True):
        if block_a.dtype != block_b.dtype or len(block_a) != len(block_b):
            return None
        for start in range(0, len(block_a), WINDOW):
            window = block_a[start : start + WINDOW]
            if not np.array_equal(window, block_b[start : start + WINDOW]):  # NaN is not
                return None
            has_length = has_length or bool(np.any(np.isfinite(window) & (window != 0)))
    return ErrorMetrics(0.0, 0.0, 1.0, math.inf) if has_length else None


def measure_errors(
    a: Blocks, b: Blocks, atol: float, rtol: float, equal_nan: bool = False
) -> ErrorMetrics:
    """Return how two tensors differ, given in blocks of the same lengths.

    An entry is within tolerance as in ``torch.isclose(b, a)``: equal, or finite and
    |a - b| <= atol + rtol * |a|. The signal-to-noise ratio is that of quantization,
    10 log10(power of the signal / power of the error), as in Oppenheim and Schafer, "Discrete-Time
    Signal Processing" (3rd ed., section 4.8), with a as signal and a - b as error.
    """
    sums = ChangeSums(atol, rtol, equal_nan)
    for block_a, block_b in zip(a, b, strict=True):
        sums.add(block_a, block_b)
    return sums.metrics()
