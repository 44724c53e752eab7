"""Running sums over two tensors, from which the measures of their change are computed.

A window of both tensors is widened to float64 and stays in the processor's cache while all sums are
taken. The products of float32 numbers are exact in float64, so a sum of n of them has a relative
error of at most n * 2**-53, and far less in practice, because it is made of many short sums.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.value_matches import ErrorSums
from hookscope.file_analysis.weights.weight_diff import ChangeMeasures
from hookscope.results.stats import ScaledSum, square_in_range

WINDOW = 1 << 15  # entries widened at a time: both windows and their difference fill 768 KiB
_ROW = 1 << 13  # entries of one product of vectors; BLAS starts threads for more than 10,000
_ALIKE = 1e4  # ratio of squared norms up to which their sum has the digits of their product
_WORDS = (8, 4, 2, 1)


class ChangeSums:
    """Running sums over blocks of A and B; entries match if |a - b| <= atol + rtol * |a|.

    Example:
        >>> sums = ChangeSums(0.0, 0.0)
        >>> sums.add(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
        >>> measures = sums.measures()
        >>> measures.largest, measures.changed, measures.distance
        (0.5, 1, 0.1)
    """

    def __init__(self, atol: float, rtol: float) -> None:
        self._atol, self._rtol = atol, rtol
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
            self._sums.add(a, b, self._atol, self._rtol, equal_nan=True)

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
        sums.largest = max(sums.largest, float(gap.max()), -float(gap.min()))
        sums.unequal += changed
        if changed and (self._atol or self._rtol):
            limit = self._atol + self._rtol * np.abs(wide_a)
            changed = int(np.count_nonzero(np.abs(gap) > limit))
        sums.beyond += changed
        return True

    def _scratch_of(self, count: int) -> list[NDArray[np.float64]]:
        """Three arrays of so many entries, in memory that is used again."""
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


def _product(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
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
