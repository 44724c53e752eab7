"""The differences of two sets of weights: the sums that are kept, and the result, as data."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.value_matches import ErrorSums
from hookscope.results.diff_result import CLOSE, DIFFERS, EQUAL
from hookscope.results.result import Result
from hookscope.results.stats import ScaledSum, square_in_range
from hookscope.stores.weights.weight_set import WeightTensor

WINDOW = 1 << 15  # entries widened at a time: both windows and their difference fill 768 KiB
_ROW = 1 << 13  # entries of one product of vectors; BLAS starts threads for more than 10,000
_ALIKE = 1e4  # ratio of squared norms up to which their sum has the digits of their product
_WORDS = (8, 4, 2, 1)


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


@dataclass(frozen=True)
class WeightChange:
    """A tensor of A and the tensor of B with the same name."""

    name: str
    other: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    numel: int
    measures: ChangeMeasures | None
    verdict: str

    @property
    def share(self) -> float | None:
        """Share of entries that changed, from 0 to 1; None if the shapes differ."""
        if self.measures is None:
            return None
        return self.measures.changed / self.numel if self.numel else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the pair as a flat dict."""
        plain = asdict(self)
        measures = plain.pop("measures") or {}
        return {**plain, **measures, "share": self.share}


@dataclass(frozen=True)
class WeightSide:
    """One of the two sets of weights."""

    path: str
    kind: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True)
class WeightDiff(Result):
    """The result of comparing two sets of weights; A is the reference.

    Attributes:
        rows: the tensors that are in both, the most changed first: other shapes, NaN in one alone,
            then by ``distance``, then those that are zero in A alone, then equal ones.
        only_a: tensors of A that are not in B, in A's order.
        only_b: tensors of B that are not in A, in B's order.
        tied: names in A, or in B alone, of tensors that share the values of a compared tensor.
        total: the measures of all compared tensors together.
        atol: entries match if ``|a - b| <= atol + rtol * |a|``.
        rtol: the relative part of the tolerance.
        strict: whether another dtype counts as a difference.
        a: what was compared.
        b: what it was compared with.
        notes: what was removed from names or left out, in sentences.
    """

    view = "weight_diff"

    rows: tuple[WeightChange, ...]
    only_a: tuple[WeightTensor, ...]
    only_b: tuple[WeightTensor, ...]
    tied: tuple[str, ...]
    total: ChangeMeasures
    atol: float
    rtol: float
    strict: bool
    a: WeightSide
    b: WeightSide
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        text = f"<WeightDiff of {len(self.rows)} tensors: {self.counts[DIFFERS]} differ"
        return f"{text}, {len(self.only_a)} only in A, {len(self.only_b)} only in B>"

    @property
    def same(self) -> bool:
        """Whether both have the same tensors, and no entry is beyond the tolerance."""
        return not (self.counts[DIFFERS] or self.only_a or self.only_b)

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs with each verdict: ``equal``, ``close`` and ``differs``."""
        counts = Counter(row.verdict for row in self.rows)
        return {verdict: counts[verdict] for verdict in (EQUAL, CLOSE, DIFFERS)}

    @property
    def numel(self) -> int:
        """The number of entries that were compared."""
        return sum(row.numel for row in self.rows if row.measures is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            "a": asdict(self.a),
            "b": asdict(self.b),
            "same": self.same,
            "counts": self.counts,
            "total": {**asdict(self.total), "numel": self.numel},
            "atol": self.atol,
            "rtol": self.rtol,
            "strict": self.strict,
            "rows": [row.to_json() for row in self.rows],
            "only_a": [asdict(tensor) for tensor in self.only_a],
            "only_b": [asdict(tensor) for tensor in self.only_b],
            "tied": list(self.tied),
            "notes": list(self.notes),
        }


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
