"""The differences of two sets of weights, read once, window by window, by several threads.

Pairs of tensors are shared out among the threads, so memory holds a few windows for each of them,
whatever the size of the tensors. Sums are put together in the order of the tensors, so a repeated
comparison gives the same digits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray

from hookscope.file_analysis.error_sums import ChangeMeasures, ChangeSums
from hookscope.file_analysis.tensor_pairs import Pair, match_or_rename, select_pairs
from hookscope.files.progress_types import Progress
from hookscope.results.diff_result import CLOSE, DIFFERS, EQUAL, count_verdicts
from hookscope.results.result import Result
from hookscope.specs.weight_options import WeightDiffOptions
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor

THREADS = min(os.cpu_count() or 1, 4)  # more of them rarely read faster, and need memory
_TASK_BYTES = 1 << 24  # bytes of small tensors that one task compares
_MEGABYTE = 1_000_000


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
        renamed: the ``--rename OLD=NEW`` with which the names match, if none does as it is; the
            names are then a difference too.
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
    renamed: str = ""

    def __repr__(self) -> str:
        text = f"<WeightDiff of {len(self.rows)} tensors: {self.counts[DIFFERS]} differ"
        return f"{text}, {len(self.only_a)} only in A, {len(self.only_b)} only in B>"

    @property
    def same(self) -> bool:
        """Whether both have the same tensors, and no entry is beyond the tolerance."""
        return not (self.counts[DIFFERS] or self.only_a or self.only_b or self.renamed)

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs with each verdict: ``equal``, ``close`` and ``differs``."""
        return count_verdicts(row.verdict for row in self.rows)

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
            "renamed": self.renamed,
        }


def compare_weights(
    a: WeightSet,
    b: WeightSet,
    options: WeightDiffOptions,
    progress: Progress | None = None,
    file: str = "",
) -> WeightDiff:
    """Compare two sets of weights by name; if one is a model's, ``file`` is the other, A or B."""
    matched, renamed = match_or_rename(a, b, options.rename, file)
    pairs = select_pairs(matched, options.layers)
    total = ChangeSums(options.atol or 0.0, options.rtol or 0.0)
    rows = []
    for pair, sums in zip(pairs.pairs, _sums_of(a, b, pairs.pairs, options, progress), strict=True):
        rows.append(_row(pair, sums, options.strict))
        if sums is not None:
            total.merge(sums)
    rows.sort(key=_order_of_change)
    return WeightDiff(
        tuple(rows),
        pairs.only_a,
        pairs.only_b,
        pairs.tied,
        total.measures(),
        options.atol or 0.0,
        options.rtol or 0.0,
        options.strict,
        _side(a),
        _side(b),
        (
            *(f"{side}: {note}" for side, one in (("A", a), ("B", b)) for note in one.notes),
            *pairs.notes,
        ),
        renamed,
    )


def _side(weights: WeightSet) -> WeightSide:
    return WeightSide(weights.label, weights.kind, len(weights), weights.entries, weights.nbytes)


def _row(pair: Pair, sums: ChangeSums | None, strict: bool) -> WeightChange:
    a, b = pair
    measures = None if sums is None else sums.measures()
    if measures is None or measures.beyond or (strict and a.dtype != b.dtype):
        verdict = DIFFERS
    else:
        verdict = CLOSE if measures.changed else EQUAL
    return WeightChange(
        a.name, b.name, (a.shape, b.shape), (a.dtype, b.dtype), a.numel, measures, verdict
    )


def _order_of_change(row: WeightChange) -> tuple[int, float]:
    """The key that sorts the most changed tensors first."""
    measures = row.measures
    if measures is None:
        return 0, 0.0
    if measures.nan_a or measures.nan_b or measures.largest == math.inf:
        return 1, 0.0
    if row.verdict == EQUAL:
        return 4, 0.0
    if measures.from_zero:  # an infinite distance, however small the change
        return 3, -measures.norms[1]
    return 2, -(measures.distance or 0.0)


def _sums_of(
    a: WeightSet,
    b: WeightSet,
    pairs: Sequence[Pair],
    options: WeightDiffOptions,
    progress: Progress | None,
) -> Iterator[ChangeSums | None]:
    """The sums of each pair in their order; None for a pair with two shapes."""
    atol, rtol = options.atol or 0.0, options.rtol or 0.0

    def compare(task: Sequence[Pair]) -> list[ChangeSums | None]:
        return [
            _compare(a.blocks(one.name), b.blocks(other.name), ChangeSums(atol, rtol))
            if one.shape == other.shape
            else None
            for one, other in task
        ]

    whole = sum(map(_nbytes, pairs))
    done = 0
    pool = ThreadPoolExecutor(THREADS)
    try:
        tasks = list(_tasks(pairs))
        for task, sums in zip(tasks, pool.map(compare, tasks), strict=True):
            yield from sums
            done += sum(map(_nbytes, task))
            if progress is not None:
                progress(done // _MEGABYTE, whole // _MEGABYTE)
    finally:  # Ctrl-C, or a file that cannot be read: do not read the rest
        pool.shutdown(cancel_futures=True)


def _nbytes(pair: Pair) -> int:
    return pair[0].nbytes + pair[1].nbytes


def _tasks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Large tensors one by one, small ones together."""
    task: list[Pair] = []
    size = 0
    for pair in pairs:
        task.append(pair)
        size += _nbytes(pair)
        if size >= _TASK_BYTES:
            yield task
            task, size = [], 0
    if task:
        yield task


def _compare(a: Iterator[NDArray[Any]], b: Iterator[NDArray[Any]], sums: ChangeSums) -> ChangeSums:
    """Add the blocks of two tensors of one shape, which may have different lengths."""
    rest_a, rest_b = next(a, None), next(b, None)
    while rest_a is not None and rest_b is not None:
        count = min(len(rest_a), len(rest_b))
        sums.add(rest_a[:count], rest_b[:count])
        rest_a = rest_a[count:] if count < len(rest_a) else next(a, None)
        rest_b = rest_b[count:] if count < len(rest_b) else next(b, None)
    return sums
