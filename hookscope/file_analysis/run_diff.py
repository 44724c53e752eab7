"""Two training runs compared: the first step and layer where they differ, as data. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import LayerError, RequestError
from hookscope.file_analysis.fingerprint_diff import compare_fingerprints
from hookscope.files.output_path import rank_folders
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import did_you_mean
from hookscope.results.fingerprint_diff import EntryChange
from hookscope.results.result import Result
from hookscope.specs import patterns
from hookscope.specs.diff_request import RunDiffOptions
from hookscope.specs.tolerances import ExactDiffOptions
from hookscope.stores.fingerprint_file import open_fingerprint
from hookscope.stores.runs.series import (
    BATCH_HASH,
    GENERATORS,
    OUTPUT,
    OUTPUT_GRAD,
    PARAMETER,
    PARAMETER_GRAD,
    STATE,
    UPDATE,
    WHOLE,
    ExecutionOrder,
    Series,
    kind_of,
)
from hookscope.stores.runs.step_fingerprints import step_fingerprints
from hookscope.stores.runs.training_run import RunTable, TrainingRun

BATCH, LOSS, LOSS_SCALE, LEARNING_RATE, TOTAL = "batch", "loss", "loss_scale", "lr", "gradients"
# The kinds of series in the order of a step. Weights are measured before it, but their differences
# come from an earlier step, or from the initialization.
KINDS = (
    *(BATCH, OUTPUT, LOSS, OUTPUT_GRAD, PARAMETER_GRAD, TOTAL),
    *(LOSS_SCALE, LEARNING_RATE, UPDATE, PARAMETER),
)
# What a resumed run must begin with, in the order in which a difference is named.
SEAM = (PARAMETER, STATE, LEARNING_RATE, LOSS_SCALE, BATCH, GENERATORS)
_SHIFTED_KINDS = (*SEAM, *(kind for kind in KINDS if kind not in SEAM))

_BACKWARD = (OUTPUT_GRAD, PARAMETER_GRAD)  # from the last layer to the first


@dataclass(frozen=True)
class RunDifference:
    """One number that differs between two runs."""

    kind: str
    step: int
    model: str
    layer: str
    key: str
    measure: str
    a: float
    b: float
    rank: int | None = None


@dataclass(frozen=True)
class KindComparison:
    """How the series of one kind differ."""

    kind: str
    series: int
    differing: int
    first: RunDifference | None

    def agrees_at(self, step: int) -> bool:
        """Whether nothing differs up to a step."""
        return self.first is None or self.first.step > step


@dataclass(frozen=True)
class SketchedSteps:
    """Fingerprints of steps of two runs, compared until one differs by more than rounding.

    Attributes:
        steps: number of steps that were compared.
        step: the step of the first difference, in A; None without one.
        model: the model that differs, as its file is named.
        change: the first tensor of it that differs.
    """

    steps: int
    step: int | None = None
    model: str = ""
    change: EntryChange | None = None
    rank: int | None = None


@dataclass(frozen=True)
class RunDiffs(Result):
    """The first of several runs compared with each of the others.

    Attributes:
        diffs: one for each of the others; A is the first run in all of them.
    """

    view = "run_diff.DIFFS"

    diffs: tuple[RunDiff, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs in any of them."""
        return all(diff.same for diff in self.diffs)

    def to_json(self) -> dict[str, Any]:
        """Return the results as a plain dict."""
        return {"same": self.same, "diffs": [diff.to_json() for diff in self.diffs]}


@dataclass(frozen=True)
class RunDiff(Result):
    """The result of comparing two runs at the steps that both have.

    Attributes:
        rows: one for each kind of series, in the order of a step.
        only_a: series of A that B does not have, as ``KEY MEASURE``, and ranks, as ``rank 1``.
        only_b: those of B that A does not have.
        steps: number of steps in A, in B and in both; of several ranks, those of the shortest.
        sampled: number of sampled steps in A, in B and in both.
        atol: values match if ``|a - b| <= atol + rtol * |a|``, or if both are NaN.
        rtol: the relative part of the tolerance.
        strict: whether series and steps of only one run count as differences.
        shift: number of steps before B was resumed. Step S of B is step S + shift of A, and all
            steps are those of A; of A, the earlier ones are not counted.
        same_batch: another step of A with the batch of B's first step, if there is one.
        a: what is known of A: its folder, script, arguments, status and ranks.
        b: what is known of B.
        sketched: how the fingerprints of steps differ; None if there are none of the same steps.
    """

    view = "run_diff"

    rows: tuple[KindComparison, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    steps: tuple[int, int, int]
    sampled: tuple[int, int, int]
    atol: float
    rtol: float
    strict: bool
    shift: int
    same_batch: int | None
    a: dict[str, Any]
    b: dict[str, Any]
    sketched: SketchedSteps | None = None

    def __repr__(self) -> str:
        place = f"first at step {self.first.step}, {self.first.key}" if self.first else "same"
        return f"<RunDiff of {self.steps[2]:,} steps: {place}>"

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        matched = not (self.only_a or self.only_b)
        for of_a, of_b, both in (self.steps, self.sampled):
            matched = matched and of_a == of_b == both
        differs = self.first is not None or (self.sketched and self.sketched.step is not None)
        return not differs and (matched or not self.strict)

    @property
    def first(self) -> RunDifference | None:
        """The first difference: of the earliest step, and in it of the first row."""
        found = [row.first for row in self.rows if row.first]
        return min(found, key=lambda one: one.step, default=None)

    @property
    def first_layer(self) -> RunDifference | None:
        """The first difference in a layer."""
        found = [row.first for row in self.rows if row.first and row.first.layer]
        return min(found, key=lambda one: one.step, default=None)

    @property
    def seam(self) -> dict[str, bool | None]:
        """Whether each kind of ``SEAM`` agrees at B's first step; None if it was not compared.

        Without a shift, there is no seam, and the result is empty. Few runs have a loss scale.
        """
        rows = {row.kind: row for row in self.rows}
        kinds = [kind for kind in SEAM if kind in rows or kind != LOSS_SCALE] if self.shift else []
        return {kind: rows[kind].agrees_at(self.shift) if kind in rows else None for kind in kinds}

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        first, layer = self.first, self.first_layer
        return {
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "first": first and asdict(first),
            "first_layer": layer and asdict(layer),
            "steps": dict(zip(("a", "b", "both"), self.steps, strict=True)),
            "sampled": dict(zip(("a", "b", "both"), self.sampled, strict=True)),
            "atol": self.atol,
            "rtol": self.rtol,
            "strict": self.strict,
            "shift": self.shift,
            "seam": self.seam,
            "same_batch": self.same_batch,
            "fingerprints": self.sketched and asdict(self.sketched),
            "rows": [asdict(row) for row in self.rows],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }


def compare_runs(
    a: str | os.PathLike[str], b: str | os.PathLike[str], options: RunDiffOptions
) -> RunDiff:
    """Compare two runs at the steps that both have; durations are left out.

    If each run has one model, the names of the two models may differ; the same holds for
    optimizers. Runs of several processes are compared rank by rank. With a shift, B is a run that
    was resumed after that many steps of A.
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
    if options.shift:
        _check_shift(a, options.shift)
    tables = (a.steps, b.steps), (a.layers, b.layers)
    pairs = [_TablePair.of(of_a, of_b, options) for of_a, of_b in tables]
    rows = [pair.compare(kind, rank, options) for kind in _SHIFTED_KINDS for pair in pairs]
    steps, sampled = (
        (int((of_a.steps >= options.shift).sum()), len(of_b), len(pair.steps))
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
        options.shift,
        _same_batch(a.steps, b.steps, options.shift),
        {},
        {},
        compare_sketches(a.folder, b.folder, rank, options),
    )


def compare_sketches(
    a: Path, b: Path, rank: int | None, options: RunDiffOptions
) -> SketchedSteps | None:
    """Compare the fingerprints of the steps that both runs have, up to the first that differs."""
    of_a, of_b = step_fingerprints(a), step_fingerprints(b)
    if len(of_a) == len(of_b) == 1:  # the names of two models may differ
        of_b = dict(zip(of_a, of_b.values(), strict=True))
    both = sorted(
        (step, model)
        for model in of_a
        for step in of_a[model]
        if step - options.shift in of_b.get(model, ())
    )
    exact = ExactDiffOptions(layers=options.layers)
    for number, (step, model) in enumerate(both):
        one = open_fingerprint(of_a[model][step])
        other = open_fingerprint(of_b[model][step - options.shift])
        try:
            found = compare_fingerprints(one, other, exact)
        except (LayerError, RequestError):  # the selected layers have series, but no outputs
            continue
        if found.first:
            steps = len({each for each, _ in both[: number + 1]})
            return SketchedSteps(steps, step, model, found.first, rank)
    return SketchedSteps(len({step for step, _ in both})) if both else None


def _check_shift(a: TrainingRun, shift: int) -> None:
    """Raise RequestError if A has no record of the step at which B was resumed."""
    name, steps = a.folder, len(a.steps)
    if shift >= steps:
        raise RequestError(
            f"--shift {shift} is not less than the number of steps of {name}, which is {steps}.",
            "Name the run that was not interrupted first, and after --shift its number of steps"
            " before the other one was resumed.",
        )
    if shift not in a.layers.steps:
        raise RequestError(
            f"Step {shift} of {name}, the first one after resuming, was not sampled: weights,"
            " optimizer state, batch and random generators were not recorded.",
            f"Record that run again: hookscope run --every {shift} SCRIPT, or --every with a number"
            f" that divides {shift}.",
        )


def _same_batch(a: RunTable, b: RunTable, shift: int) -> int | None:
    """The step of A, if it is not the one after the shift, that has the batch of B's first step."""
    if not shift or BATCH_HASH not in a or BATCH_HASH not in b:
        return None
    of_a, of_b = a.curve(BATCH_HASH), b.curve(BATCH_HASH)
    steps = of_a.steps[np.isin(of_a.values, of_b.values[of_b.steps == 0])].tolist()
    return None if shift in steps else next(iter(steps), None)


def _joined(results: Sequence[RunDiff]) -> RunDiff:
    """The comparisons of several ranks as one."""
    rows = []
    for kind in _SHIFTED_KINDS if results[0].shift else KINDS:
        same = [row for result in results for row in result.rows if row.kind == kind]
        if same:
            firsts = (row.first for row in same if row.first)
            first = min(firsts, key=lambda one: one.step, default=None)
            counts = [sum(row.series for row in same), sum(row.differing for row in same)]
            rows.append(KindComparison(kind, counts[0], counts[1], first))
    steps, sampled = (
        tuple(map(min, zip(*counts, strict=True)))
        for counts in zip(*((result.steps, result.sampled) for result in results), strict=True)
    )
    found = [result.sketched for result in results if result.sketched]
    sketched = min(found, key=_first_sketched, default=None)
    return replace(results[0], rows=tuple(rows), steps=steps, sampled=sampled, sketched=sketched)


def _first_sketched(found: SketchedSteps) -> float:
    return inf if found.step is None else found.step


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


def _comparison_kind(series: Series, options: RunDiffOptions) -> str | None:
    """The kind of a series; None for durations, which never repeat."""
    if kind_of(series) != WHOLE:
        # The gradient is in it, so it is no weight that a resumed run begins with.
        return UPDATE if options.shift and series.measure == "adam_rms" else kind_of(series)
    if series.measure == "lr":
        return LEARNING_RATE
    if series.measure == "hash" and (options.atol or options.rtol):  # they have no tolerance
        return None
    kind = series.key.partition(".")[0]
    is_compared = series.measure != "hash" and kind in KINDS
    return kind if is_compared or (options.shift and kind in SEAM) else None


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
        steps, rows_a, rows_b = np.intersect1d(
            a.steps, b.steps + options.shift, True, return_indices=True
        )
        renamed = _as_named_in(a.series, b.series)
        series_a = [one for one in a.series if _is_compared(one, options)]
        series_b = {renamed[one]: one for one in b.series if _is_compared(renamed[one], options)}
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
        columns = [n for n, one in enumerate(self.names) if _comparison_kind(one, options) == kind]
        columns.sort(key=lambda n: order.place(self.names[n]), reverse=kind in _BACKWARD)
        columns.sort(key=lambda n: self.names[n].measure == "hash")  # others say more
        if not columns:
            return None
        chosen = [[names[n] for n in columns] for names in (self.names, self.of_b)]
        sides = list(zip(self.tables, chosen, self.rows, strict=True))
        a, b = (table.matrix(names)[rows] for table, names, rows in sides)
        in_a, in_b = (table.present(names)[rows] for table, names, rows in sides)
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


def _is_compared(series: Series, options: RunDiffOptions) -> bool:
    if _comparison_kind(series, options) is None:
        return False
    included, excluded = patterns.split_exclusions(options.layers)
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
