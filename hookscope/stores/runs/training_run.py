"""A run folder read: which series there are, and the curve of each. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import MissingKeyError, ResultsFileError
from hookscope.files.suggestions import did_you_mean
from hookscope.results.result import Result
from hookscope.stores.runs.row_blocks import RowBlock, block_files, concatenate, read_blocks
from hookscope.stores.runs.run_info import (
    EVENTS_FILE,
    SERIES_FILE,
    RunEvent,
    RunInfo,
    read_info,
    read_lines,
)
from hookscope.stores.runs.series import LAYERS, STEPS, Series


@dataclass(frozen=True)
class Curve:
    """The values of one series over the steps."""

    series: Series
    steps: NDArray[np.int64]
    values: NDArray[np.float32]


class RunTable:
    """One table of a run, in memory."""

    def __init__(self, block: RowBlock, names: list[Series]) -> None:
        self.steps = block.steps
        self.times = block.times
        self.series = tuple(names[number] for number in block.series)
        self._columns = {series: n for n, series in enumerate(self.series)}
        self._block = block

    def __len__(self) -> int:
        return len(self.steps)

    def __contains__(self, series: object) -> bool:
        return series in self._columns

    def curve(self, series: Series) -> Curve:
        """Return the values of a series at the steps where it has one."""
        column = self._columns.get(series)
        if column is None:
            raise MissingKeyError(f"The run has no series {series.key} {series.measure}.")
        present = self._block.present[:, column]
        return Curve(series, self.steps[present], self._block.values[present, column])

    def column(
        self, series: Series, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the values of a series in some rows, and in which of them there is one."""
        column = self._columns[series]
        return self._block.values[rows, column], self._block.present[rows, column]

    def matrix(self, series: Iterable[Series]) -> NDArray[np.float32]:
        """Return the values of several series, float32 [R, n]; NaN where there is no value."""
        columns = [self._columns[one] for one in series]
        values = self._block.values[:, columns]
        return np.where(self._block.present[:, columns], values, np.float32(np.nan))

    def present(self, series: Iterable[Series]) -> NDArray[np.bool_]:
        """Return where several series have a value, bool [R, n]; the value itself may be NaN."""
        return self._block.present[:, [self._columns[one] for one in series]]


class TrainingRun(Result):
    """The run that one process of a script wrote into a folder; it may still be going on.

    Args:
        path: the folder, with ``run.json``.

    Attributes:
        folder: the folder.
        info: what is known of the run as a whole.
        names: all series that were measured, in the order in which they were first measured.
        events: what happened at single steps, in order.
        ended_early: for the run of several ranks, the number of each rank that has fewer steps than
            another one, and its steps.

    Raises:
        ResultsFileError: hookscope did not write the folder, or it is damaged.

    Example:
        >>> import hookscope
        >>> run = hookscope.load("sample_models/run")
        >>> run.info["status"], len(run.steps)
        ('finished', 40)
        >>> run.curve("fc2/weight.grad", "norm").values.shape
        (7,)
    """

    view = "training_run"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = Path(path)
        self.info: RunInfo = read_info(self.folder)
        if self.info["status"] == "running":  # run.json is older than the rows
            rows = max((file.last + 1 for file in block_files(self.folder, STEPS)), default=0)
            self.info["steps"] = max(self.info["steps"], rows)
        self.names: list[Series] = self._read_names()
        self.ended_early: list[tuple[int, int]] = []
        self.events: list[RunEvent] = read_lines(self.folder / EVENTS_FILE, RunEvent)

    def to_json(self) -> dict[str, Any]:
        """Return ``run.json``, the number of sampled steps, events, and ranks that ended early."""
        return {
            **self.info,
            "sampled_steps": len(self.layers),
            "events": [event._asdict() for event in self.events],
            "ended_early": [{"rank": rank, "steps": steps} for rank, steps in self.ended_early],
        }

    def __repr__(self) -> str:
        steps, status = self.info["steps"], self.info["status"]
        return f"<TrainingRun {self.folder}: {status}, {steps:,} steps, {len(self.names)} series>"

    @cached_property
    def steps(self) -> RunTable:
        """The table with a row for each step: loss, learning rates, times."""
        return self._read(STEPS)

    @cached_property
    def layers(self) -> RunTable:
        """The table with a row for each sampled step: activations, gradients, parameters."""
        return self._read(LAYERS)

    def curve(self, key: str, measure: str, model: str | None = None) -> Curve:
        """Return the values of one series over the steps.

        Args:
            key: what was measured: ``conv1/output``, ``conv1/weight.grad``, ``loss``.
            measure: a name of ``MEASURES``: ``rms``, ``norm``, ``value``.
            model: name of the model, or of the optimizer for its loss and learning rates; empty for
                what belongs to the whole run. None if only one has such a series, and for that of
                the whole run.

        Raises:
            MissingKeyError: there is no such series, or there are several.
        """
        matches = [
            series
            for series in (*self.steps.series, *self.layers.series)
            if (series.key, series.measure) == (key, measure) and model in (None, series.model)
        ]
        if model is None:
            matches = [series for series in matches if not series.model] or matches
        if len(matches) != 1:
            keys = {series.key for series in self.names if series.measure == measure}
            names = " or ".join(f"model={series.model!r}" for series in matches)
            hint = f"Add {names}." if matches else did_you_mean(key, keys)
            count = "several series" if matches else "no series"
            raise MissingKeyError(f"The run has {count} {key} {measure}.", hint)
        [series] = matches
        table = self.steps if series in self.steps else self.layers
        return table.curve(series)

    def blocks(self, table: str) -> Iterator[RowBlock]:
        """Yield the rows of a table (``steps`` or ``layers``) in parts of up to 16 MiB or so."""
        for block in read_blocks(self.folder, table):
            if len(block.series) and block.series.max() >= len(self.names):
                # Series are written before the rows that have them.
                self.names = self._read_names()
                if block.series.max() >= len(self.names):
                    raise ResultsFileError(
                        f"{self.folder / SERIES_FILE} is damaged: it has {len(self.names)} lines,"
                        f" and a row names series {block.series.max()}.",
                        "Run the script again.",
                    )
            yield block

    def _read(self, table: str) -> RunTable:
        return RunTable(concatenate(list(self.blocks(table))), self.names)

    def _read_names(self) -> list[Series]:
        return read_lines(self.folder / SERIES_FILE, Series)
