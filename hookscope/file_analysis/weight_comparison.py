"""Comparison of two sets of weights: read once, window by window, by several threads.

Pairs of tensors are shared out among the threads, so memory holds a few windows for each of them,
whatever the size of the tensors. Sums are put together in the order of the tensors, so a repeated
comparison gives the same digits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from hookscope.file_analysis.tensor_pairs import Pair, match_tensors, select_pairs
from hookscope.file_analysis.weight_diff import (
    ChangeSums,
    WeightChange,
    WeightDiff,
    WeightSide,
)
from hookscope.files.progress import Progress
from hookscope.results.diff_result import CLOSE, DIFFERS, EQUAL
from hookscope.specs.weight_options import WeightDiffOptions
from hookscope.stores.weights.weight_set import WeightSet

THREADS = min(os.cpu_count() or 1, 4)  # more of them rarely read faster, and need memory
_TASK_BYTES = 1 << 24  # bytes of small tensors that one task compares
_MEGABYTE = 1_000_000


def compare_weights(
    a: WeightSet, b: WeightSet, options: WeightDiffOptions, progress: Progress | None = None
) -> WeightDiff:
    """Compare two sets of weights by name."""
    pairs = select_pairs(match_tensors(a, b, options.rename), options.layers)
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
