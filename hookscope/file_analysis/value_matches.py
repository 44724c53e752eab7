"""Pairs of tensors of a model and an ONNX file of it that are found by their values.

A file names no outputs of modules: those of a call are in the order in which they are computed, and
two calls that follow each other may look like one. So the number of a call or of an output does not
always say which tensor of the model is meant, but the values do.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.diff_result import ErrorMetrics
from hookscope.results.numpy_stats import scale, squared_distance, sum_of_squares
from hookscope.results.records import Record
from hookscope.results.stats import ScaledSum, ldexp
from hookscope.specs.patterns import ROOT
from hookscope.specs.tolerances import ENGINE_TOLERANCES

_SHARE = 0.2  # of the tolerance: errors of entries cancel out in sums
_EXACT = 1e-11  # of integers, whose sums are rounded
_STEPS = 100  # deviations closer than this part of the limit are alike
_RATIO = 0.6180339887498949  # of the golden section; its multiples are spread over 0..1


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


@dataclass(frozen=True)
class Fingerprint:
    """Numbers that are close for tensors that are close."""

    norm: float
    mean: float
    projection: float

    @classmethod
    def of(cls, blocks: Iterable[NDArray[np.generic]]) -> Fingerprint:
        """Return that of a tensor, given in blocks of one dimension.

        >>> Fingerprint.of([np.array([3.0, 4.0])]).norm
        5.0
        """
        squares = total = projection = 0.0
        start = 0
        with np.errstate(all="ignore"):
            for block in blocks:
                entries = double_precision(block)
                entries = np.abs(entries) if np.iscomplexobj(entries) else entries
                weights = np.arange(start, start + len(entries)) * _RATIO % 1 - 0.5
                squares += float(entries @ entries)
                total += float(entries.sum())
                projection += float(entries @ weights)
                start += len(entries)
        return cls(squares**0.5, total / max(start, 1) ** 0.5, projection)

    def deviation(self, other: Fingerprint, *, ordered: bool = True) -> float:
        """Return how far two tensors are from each other at least, as a part of the larger norm."""
        gap = abs(self.norm - other.norm) + abs(self.mean - other.mean)
        if ordered:
            gap += abs(self.projection - other.projection)
        largest = max(self.norm, other.norm)
        return gap / largest if largest else gap


Fingerprints = tuple[Mapping[str, Fingerprint], Mapping[str, Fingerprint]]


@dataclass(frozen=True)
class ValueMatches:
    """What values tell of the records of modules."""

    pairs: tuple[tuple[Record, Record], ...]
    left: tuple[frozenset[str], frozenset[str]]


def match_by_value(
    a: Sequence[Record],
    b: Sequence[Record],
    prints: Fingerprints,
    rename: Callable[[str], str],
) -> ValueMatches:
    """Match the records of modules whose calls or outputs may have other numbers in A and B.

    Where they have the same numbers, a tensor with its axes in another order has no partner.
    """
    groups: dict[tuple[str, str], tuple[list[Record], list[Record]]] = defaultdict(lambda: ([], []))
    for side, records in enumerate((a, b)):
        for record in records:
            if record.module != ROOT:
                name = record.module if side else rename(record.module)
                groups[name, record.kind][side].append(record)
    pairs: list[tuple[Record, Record]] = []
    left: tuple[set[str], set[str]] = (set(), set())
    for own, others in groups.values():
        if not own or not others:
            continue
        if not _is_ambiguous(own, others):
            for record, other in zip(own, others, strict=True):
                if _is_transposed(record, other, prints):
                    left[0].add(record.key)
                    left[1].add(other.key)
        else:
            found = _closest(own, others, prints)
            pairs += found
            for side, records in enumerate((own, others) if found else ()):
                left[side].update({r.key for r in records} - {pair[side].key for pair in found})
    return ValueMatches(tuple(pairs), (frozenset(left[0]), frozenset(left[1])))


def _is_ambiguous(a: Sequence[Record], b: Sequence[Record]) -> bool:
    """Whether a call has several outputs, or the sides have other numbers of calls."""
    calls = [Counter(record.call for record in records) for records in (a, b)]
    return calls[0] != calls[1] or max(calls[0].values()) > 1


def _is_transposed(a: Record, b: Record, prints: Fingerprints) -> bool:
    """Whether two tensors have the same entries, but the axes in another order.

    So it is if the exporter joined the last transpose of a module with the next operation.
    """
    if a.shape == b.shape or sorted(a.shape) != sorted(b.shape):
        return False
    own, other, limit = prints[0][a.key], prints[1][b.key], _limit(a, b)
    return own.deviation(other, ordered=False) <= limit < own.deviation(other)


def _closest(
    a: Sequence[Record], b: Sequence[Record], prints: Fingerprints
) -> list[tuple[Record, Record]]:
    """Pairs with close values, the closest first; of equally close ones those of one name."""
    candidates = []
    for n, record in enumerate(a):
        for m, other in enumerate(b):
            if prod(record.shape) == prod(other.shape):
                limit = _limit(record, other)
                deviation = prints[0][record.key].deviation(prints[1][other.key])
                if isfinite(deviation) and deviation <= limit:
                    differ = (record.what, record.call) != (other.what, other.call)
                    step = int(deviation / limit * _STEPS)
                    candidates.append((step, differ, record.shape != other.shape, n, m))
    pairs: dict[int, int] = {}
    for *_, n, m in sorted(candidates):
        if n not in pairs and m not in pairs.values():
            pairs[n] = m
    return [(a[n], b[m]) for n, m in pairs.items()]


def _limit(a: Record, b: Record) -> float:
    return _SHARE * max(ENGINE_TOLERANCES.get(dtype, _EXACT) for dtype in (a.dtype, b.dtype))
