"""Compares two training runs, series by series, at the steps that both have. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import LayerError, RequestError
from hookscope.file_analysis.run_diff import (
    KINDS,
    LEARNING_RATE,
    KindComparison,
    RunDiff,
    RunDifference,
)
from hookscope.files.output_path import rank_folders
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import did_you_mean
from hookscope.specs import patterns
from hookscope.specs.diff_request import RunDiffOptions
from hookscope.stores.runs.series import (
    OUTPUT_GRAD,
    PARAMETER_GRAD,
    WHOLE,
    ExecutionOrder,
    Series,
    kind_of,
)
from hookscope.stores.runs.training_run import RunTable, TrainingRun

_BACKWARD = (OUTPUT_GRAD, PARAMETER_GRAD)  # from the last layer to the first


def compare_runs(
    a: str | os.PathLike[str], b: str | os.PathLike[str], options: RunDiffOptions
) -> RunDiff:
    """Compare two runs at the steps that both have; durations are left out.

    If each run has one model, the names of the two models may differ; the same holds for
    optimizers. Runs of several processes are compared rank by rank.
    """
    runs_a, runs_b = _runs_by_rank(a), _runs_by_rank(b)
    if (None in runs_a) != (None in runs_b):
        folder, runs = (b, runs_b) if None in runs_a else (a, runs_a)
        raise RequestError(
            f"{folder} has the runs of {len(runs)} ranks, and the other folder has one run.",
            f"Name one of them, such as {quote_word(str(next(iter(runs.values())).folder))}.",
        )
    names = [name for run in (*runs_a.values(), *runs_b.values()) for name in run.names]
    _check_layers(options.layers, names)
    found = [
        _compare_rank(runs_a[rank], runs_b[rank], rank, options)
        for rank in runs_a
        if rank in runs_b
    ]
    if not any(result.steps[2] or result.sampled[2] for result in found):
        raise RequestError(
            f"No step is both in {a} and in {b}.", "Compare runs that have the same first steps."
        )
    return replace(
        _joined(found),
        only_a=_distinct(found, "only_a") + _ranks_without(runs_b, runs_a),
        only_b=_distinct(found, "only_b") + _ranks_without(runs_a, runs_b),
        a=_describe(runs_a) | {"folder": os.fspath(a)},
        b=_describe(runs_b) | {"folder": os.fspath(b)},
    )


def _runs_by_rank(folder: str | os.PathLike[str]) -> dict[int | None, TrainingRun]:
    """The runs in a folder by the number of their process; that of a single one by None."""
    ranks = [TrainingRun(path) for path in rank_folders(folder)]
    return {run.info["rank"]: run for run in ranks} or {None: TrainingRun(folder)}


def _compare_rank(
    a: TrainingRun, b: TrainingRun, rank: int | None, options: RunDiffOptions
) -> RunDiff:
    """Compare two runs of one process each."""
    tables = (a.steps, b.steps), (a.layers, b.layers)
    pairs = [_TablePair.of(of_a, of_b, options) for of_a, of_b in tables]
    rows = [pair.compare(kind, rank, options) for kind in KINDS for pair in pairs]
    steps, sampled = (
        (len(of_a), len(of_b), len(pair.steps))
        for pair, (of_a, of_b) in zip(pairs, tables, strict=True)
    )
    return RunDiff(
        tuple(row for row in rows if row is not None),
        tuple(name for pair in pairs for name in pair.only_a),
        tuple(name for pair in pairs for name in pair.only_b),
        steps,
        sampled,
        options.atol or 0.0,
        options.rtol or 0.0,
        options.strict,
        {},
        {},
    )


def _joined(results: Sequence[RunDiff]) -> RunDiff:
    """The comparisons of several ranks as one."""
    rows = []
    for kind in KINDS:
        same = [row for result in results for row in result.rows if row.kind == kind]
        if same:
            first = min((row.first for row in same if row.first), key=_step_of, default=None)
            counts = [sum(row.series for row in same), sum(row.differing for row in same)]
            rows.append(KindComparison(kind, counts[0], counts[1], first))
    steps, sampled = (
        tuple(map(min, zip(*counts, strict=True)))
        for counts in zip(*((result.steps, result.sampled) for result in results), strict=True)
    )
    return replace(results[0], rows=tuple(rows), steps=steps, sampled=sampled)


def _step_of(difference: RunDifference) -> int:
    return difference.step


def _distinct(results: Iterable[RunDiff], side: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for result in results for name in getattr(result, side)))


def _ranks_without(others: Container[int | None], own: Iterable[int | None]) -> tuple[str, ...]:
    return tuple(f"rank {rank}" for rank in own if rank not in others)


def _describe(runs: Mapping[int | None, TrainingRun]) -> dict[str, Any]:
    info = next(iter(runs.values())).info
    return {
        **{"script": info["script"], "arguments": info["arguments"], "status": info["status"]},
        "versions": info["versions"],
        "ranks": [rank for rank in runs if rank is not None],
    }


def _check_layers(layers: Iterable[str], series: Sequence[Series]) -> None:
    names = list(dict.fromkeys(one.module for one in series if one.module))
    included, excluded = patterns.split_exclusions(layers)
    for pattern in (*included, *excluded):
        if not any(map(patterns.compile_pattern(pattern), names)):
            raise LayerError(
                f"No layer of A or B matches {pattern!r}.", did_you_mean(pattern, names)
            )


def _comparison_kind(series: Series) -> str | None:
    """The kind of a series; None for durations, which never repeat."""
    if kind_of(series) != WHOLE:
        return kind_of(series)
    if series.measure == "lr":
        return LEARNING_RATE
    return series.key if series.key in KINDS else None


@dataclass(frozen=True)
class _TablePair:
    """The series and steps that a table of A and one of B have in common."""

    tables: tuple[RunTable, RunTable]
    names: tuple[Series, ...]
    of_b: tuple[Series, ...]
    steps: NDArray[np.int64]
    rows: tuple[NDArray[np.intp], NDArray[np.intp]]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @classmethod
    def of(cls, a: RunTable, b: RunTable, options: RunDiffOptions) -> _TablePair:
        """Match the series by their names, and the rows by their steps."""
        steps, rows_a, rows_b = np.intersect1d(a.steps, b.steps, True, return_indices=True)
        renamed = _as_named_in(a.series, b.series)
        series_a = [one for one in a.series if _is_compared(one, options.layers)]
        series_b = {
            renamed[one]: one for one in b.series if _is_compared(renamed[one], options.layers)
        }
        names = tuple(one for one in series_a if one in series_b)
        only_b = [one for one in series_b if one not in set(series_a)]
        return cls(
            (a, b),
            names,
            tuple(series_b[one] for one in names),
            steps,
            (rows_a, rows_b),
            tuple(_label(one) for one in series_a if one not in series_b),
            tuple(_label(one) for one in only_b),
        )

    def compare(
        self, kind: str, rank: int | None, options: RunDiffOptions
    ) -> KindComparison | None:
        """Compare the series of one kind, of one process; None if there are none."""
        order = ExecutionOrder(self.tables[0].series)
        columns = [n for n, one in enumerate(self.names) if _comparison_kind(one) == kind]
        columns.sort(key=lambda n: order.place(self.names[n]), reverse=kind in _BACKWARD)
        if not columns:
            return None
        sides = ((self.names, 0), (self.of_b, 1))
        a, b = (
            self.tables[side].matrix([names[n] for n in columns])[self.rows[side]]
            for names, side in sides
        )
        in_a, in_b = (
            self.tables[side].present([names[n] for n in columns])[self.rows[side]]
            for names, side in sides
        )
        differs = in_a & in_b & ~_matches(a, b, options.atol or 0.0, options.rtol or 0.0)
        comparison = KindComparison(kind, len(columns), int(differs.any(axis=0).sum()), None)
        if not differs.any():
            return comparison
        row = int(differs.any(axis=1).argmax())
        column = int(differs[row].argmax())
        series = self.names[columns[column]]
        return replace(
            comparison,
            first=RunDifference(
                kind,
                int(self.steps[row]),
                series.model,
                series.module,
                series.key,
                series.measure,
                float(a[row, column]),
                float(b[row, column]),
                rank,
            ),
        )


def _matches(
    a: NDArray[np.float32], b: NDArray[np.float32], atol: float, rtol: float
) -> NDArray[np.bool_]:
    """Where values are within tolerance, the same infinity, or both NaN."""
    same: NDArray[np.bool_] = (a == b) | (np.isnan(a) & np.isnan(b))
    unequal = ~same & np.isfinite(a) & np.isfinite(b)
    wide_a, wide_b = (one[unequal].astype(np.float64) for one in (a, b))
    same[unequal] = np.abs(wide_a - wide_b) <= atol + rtol * np.abs(wide_a)
    return same


def _is_compared(series: Series, layers: Iterable[str]) -> bool:
    if _comparison_kind(series) is None:
        return False
    included, excluded = patterns.split_exclusions(layers)
    if not included and not excluded:
        return True

    def any_matches(texts: Iterable[str]) -> bool:
        return any(patterns.matches(text, series.module) for text in texts)

    chosen = not included or any_matches(included)
    return bool(series.module) and chosen and not any_matches(excluded)


def _as_named_in(a: Iterable[Series], b: Iterable[Series]) -> dict[Series, Series]:
    """The series of B under A's names: if each run has one model, or one optimizer, it is that."""
    names_a, names_b = (
        list(dict.fromkeys(one.model for one in side if one.model)) for side in (a, b)
    )
    if len(names_a) == len(names_b) == 1:
        return {one: one._replace(model=names_a[0] if one.model else "") for one in b}
    return {one: one for one in b}


def _label(series: Series) -> str:
    return f"{series.key} {series.measure}"
