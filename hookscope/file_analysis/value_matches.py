"""Pairs of tensors of a model and an ONNX file of it that are found by their values.

A file names no outputs of modules: those of a call are in the order in which they are computed, and
two calls that follow each other may look like one. So the number of a call or of an output does not
always say which tensor of the model is meant, but the values do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.error_sums import double_precision
from hookscope.results.records import Record
from hookscope.specs.patterns import ROOT
from hookscope.specs.tolerances import ENGINE_TOLERANCES

_SHARE = 0.2  # of the tolerance: errors of entries cancel out in sums
_EXACT = 1e-11  # of integers, whose sums are rounded
_STEPS = 100  # deviations closer than this part of the limit are alike
_RATIO = 0.6180339887498949  # of the golden section; its multiples are spread over 0..1


@dataclass(frozen=True)
class Fingerprint:
    """Numbers that are close for tensors that are close."""

    norm: float
    mean: float
    projection: float

    @classmethod
    def of(cls, blocks: Iterable[NDArray[np.generic]]) -> Fingerprint:
        """Return that of a tensor, given in blocks of one dimension."""
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
    """Whether two tensors differ in the order of axes only, as an exporter may have joined them."""
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
