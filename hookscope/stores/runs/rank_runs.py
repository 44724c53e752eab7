"""The run folders of several processes as one run: statistics over all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import ResultsFileError
from hookscope.files.output_path import rank_folders
from hookscope.stores.runs.row_blocks import RowBlock
from hookscope.stores.runs.run_info import RunInfo
from hookscope.stores.runs.series import LAYERS, Series
from hookscope.stores.runs.training_run import RunTable, TrainingRun

Rule = Literal["first", "mean", "sum", "max", "root mean square", "root sum square"]

_STEP_RULES: dict[str, Rule] = {
    "value": "mean",
    "seconds": "max",
    "samples": "sum",
    "tokens": "sum",
    "skipped": "max",
}
_ACTIVATION_RULES: dict[str, Rule] = {
    "rms": "root mean square",
    "norm": "root mean square",
    "max": "max",
    "zeros": "mean",
    "dead": "mean",
    "nonfinite": "sum",
}
_SHARDED_RULES: dict[str, Rule] = {
    "norm": "root sum square",
    "nonfinite": "sum",
    "adam_rms": "root mean square",
}
# How the values of the ranks become one, float64 [ranks that have one, steps] to [steps].
_COMBINED: dict[Rule, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "first": lambda values: values[0],
    "mean": lambda values: values.mean(axis=0),
    "sum": lambda values: values.sum(axis=0),
    "max": lambda values: values.max(axis=0),
    "root mean square": lambda values: np.sqrt((values**2).mean(axis=0)),
    "root sum square": lambda values: np.sqrt((values**2).sum(axis=0)),
}


class RankRuns(TrainingRun):
    """The run of a script in several processes, with one value for all ranks.

    Rows are those of the steps that all ranks have. Where a rank has no value, the others are
    combined. R is the number of ranks, x_r the value of rank r:

    - outputs: ``rms`` is sqrt(sum(x_r^2) / R), each rank having as many entries; ``max`` is the
      largest; ``zeros`` and ``dead`` are means; ``nonfinite`` is the sum;
    - gradients at outputs: the same; ``norm`` is sqrt(sum(x_r^2) / R), that of a usual rank;
    - parameters, their gradients and updates: of a model with the layout ``whole`` the values of
      rank 0, which are those of each rank; of a ``sharded`` one ``norm`` is sqrt(sum(x_r^2)),
      ``nonfinite`` the sum, ``adam_rms`` sqrt(sum(x_r^2) / R), and ``ratio`` the norm of the update
      over the norm of the parameter in the same row, both of all ranks;
    - steps: ``loss`` and ``loss_scale`` are means; samples and tokens are sums; ``seconds`` is that
      of the slowest rank; learning rates are those of rank 0; a step is skipped if one rank skips.

    Args:
        path: the folder with the folders ``rank0``, ``rank1``, ...

    Attributes:
        runs: the run of each rank.

    Raises:
        ResultsFileError: there is no such folder in it, or one of them is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.runs = [TrainingRun(folder) for folder in rank_folders(path)]
        if not self.runs:
            raise ResultsFileError(
                f"{os.fspath(path)} has no folder of a rank.",
                "Name the folder that 'hookscope run' wrote.",
            )
        self.folder = Path(path)
        self.info: RunInfo = _joined_info(self.runs)
        self.names = _joined_names(self.runs)
        self.events = sorted(
            event._replace(
                message=f"Rank {run.info['rank']}: {event.message}",
                file=event.file and f"rank{run.info['rank']}/{event.file}",
            )
            for run in self.runs
            for event in run.events
        )
        last = max(run.info["steps"] for run in self.runs)
        self.ended_early = [
            (run.info["rank"], run.info["steps"]) for run in self.runs if run.info["steps"] < last
        ]

    def __repr__(self) -> str:
        return super().__repr__().replace("<TrainingRun", f"<RankRuns of {len(self.runs)} ranks,")

    def blocks(self, table: str) -> Iterator[RowBlock]:
        """Yield the rows of all ranks as one block."""
        tables = [run.layers if table == LAYERS else run.steps for run in self.runs]
        self.names = _joined_names(self.runs)
        numbers = {series: n for n, series in enumerate(self.names)}
        measured = {numbers[series] for each in tables for series in each.series}
        columns = np.array(sorted(measured), np.int32)
        steps = reduce(np.intersect1d, (each.steps for each in tables))
        rows = [np.searchsorted(each.steps, steps) for each in tables]
        sharded = {model["name"] for model in self.info["models"] if model["layout"] == "sharded"}
        values = np.full((len(steps), len(columns)), np.nan, np.float32)
        present = np.zeros(values.shape, np.bool_)
        for column, number in enumerate(columns):
            series = self.names[number]
            rule = _rule(series, table, series.model in sharded)
            present[:, column] = _combine(tables, rows, series, rule, values[:, column])
        times = [each.times[row] for each, row in zip(tables, rows, strict=True)]
        block = RowBlock(steps, np.max(times, axis=0), columns, values, present)
        _set_ratios(block, [self.names[number] for number in columns], sharded)
        yield block


def open_run(path: str | os.PathLike[str]) -> TrainingRun:
    """Return the run in a folder: of one process, or of all ranks."""
    return RankRuns(path) if rank_folders(path) else TrainingRun(path)


def _joined_names(runs: Sequence[TrainingRun]) -> list[Series]:
    return list(dict.fromkeys(name for run in runs for name in run.names))


def _joined_info(runs: Sequence[TrainingRun]) -> RunInfo:
    """What is known of the run as a whole: that of rank 0, and what differs at other ranks."""
    infos = [run.info for run in runs]
    info: RunInfo = infos[0].copy()
    unfinished = (one["status"] for one in infos if one["status"] != "finished")
    info["status"] = next(unfinished, "finished")
    info["exit_status"] = next(
        (one["exit_status"] for one in infos if one["exit_status"]), info["exit_status"]
    )
    info["steps"] = min(one["steps"] for one in infos)
    info["seconds"] = max(one["seconds"] for one in infos)
    gaps = [f"rank {one['rank']}: {one['incomplete']}" for one in infos if one["incomplete"]]
    info["incomplete"] = " ".join(gaps)
    info["unwatched"] = []
    for one in infos:
        info["unwatched"] += [entry for entry in one["unwatched"] if entry not in info["unwatched"]]
    return info


def _rule(series: Series, table: str, sharded: bool) -> Rule:
    if table != LAYERS:
        return _STEP_RULES.get(series.measure, "first")
    if series.what.startswith("output"):
        return _ACTIVATION_RULES.get(series.measure, "mean")
    return _SHARDED_RULES.get(series.measure, "first") if sharded else "first"


def _combine(
    tables: Sequence[RunTable],
    rows: Sequence[NDArray[np.int64]],
    series: Series,
    rule: Rule,
    values: NDArray[np.float32],
) -> NDArray[np.bool_]:
    """Write the values of all ranks into ``values``; return in which rows there is one."""
    parts = [
        table.column(series, row)
        for table, row in zip(tables, rows, strict=True)
        if series in table
    ]
    ranks = np.array([part[0] for part in parts], np.float64)
    present = np.stack([part[1] for part in parts])
    with np.errstate(over="ignore", invalid="ignore"):
        if present.all():
            values[:] = _COMBINED[rule](ranks)
            return np.ones(len(values), np.bool_)
        for which in np.unique(present, axis=1).T:  # for each set of ranks that have a value
            chosen = np.asarray((present == which[:, None]).all(axis=0))
            if which.any():
                values[chosen] = _COMBINED[rule](ranks[which][:, chosen])
    return np.asarray(present.any(axis=0))


def _set_ratios(block: RowBlock, names: Sequence[Series], sharded: set[str]) -> None:
    """Compute the ratios of sharded parameters from the norms of all ranks."""
    columns = {series: n for n, series in enumerate(names)}
    for series, column in columns.items():
        if series.measure != "ratio" or series.model not in sharded:
            continue
        weight = columns.get(Series(series.model, series.key.removesuffix(".update"), "norm"))
        update = columns.get(series._replace(measure="norm"))
        if weight is None or update is None:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            block.values[:, column] = block.values[:, update] / block.values[:, weight]
        block.present[:, column] = block.present[:, update] & block.present[:, weight]
