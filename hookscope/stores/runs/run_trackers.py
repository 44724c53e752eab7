"""The numbers of a run sent to an experiment tracker: a project of wandb, an experiment of MLflow.

Both are written with their own packages, which read where to write from their own settings: a
server, or a folder (``WANDB_MODE=offline``, ``MLFLOW_TRACKING_URI=file:FOLDER``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import Any

from hookscope.errors import StoreError, cause
from hookscope.files.optional_packages import optional_package
from hookscope.files.output_path import TrackerAddress
from hookscope.files.progress_types import Progress
from hookscope.files.shell_words import join_words
from hookscope.results.exports import TrackedRun
from hookscope.stores.runs.run_export import (
    CountedParts,
    RunPart,
    parts_of,
    rows_done,
    scalar_tag,
)
from hookscope.stores.runs.run_info import RunInfo, Status
from hookscope.stores.runs.series import TABLES, Series, choose_series
from hookscope.stores.runs.training_run import TrainingRun

_MAX_BATCH = 1000  # metrics that MLflow takes at once
_MAX_PARAMETERS = 100
_LONGEST = 500  # characters of a parameter of MLflow, in all its versions
_NOT_ALLOWED = re.compile(r"[^\w\-. /]", re.ASCII)  # in names of MLflow
_ENDS: dict[Status, str] = {"finished": "FINISHED", "failed": "FAILED", "running": "RUNNING"}


@dataclass(frozen=True)
class ScalarRow:
    """The values of one step; ``time`` is in seconds since 1970."""

    step: int
    time: float
    values: dict[Series, float]


class TrackedExport(ABC):
    """A run that is being written to a tracker."""

    run_id: str
    place: str

    @abstractmethod
    def log(self, row: ScalarRow) -> None:
        """Write the values of a step; steps come in order."""

    @abstractmethod
    def end(self, status: Status, time: float) -> None:
        """End the run as it ended; ``time`` is when."""


def export_to_tracker(
    run: TrainingRun,
    address: TrackerAddress,
    layers: Sequence[str],
    progress: Progress | None = None,
) -> TrackedRun:
    """Write the numbers of a run, its configuration and name as a new run of a tracker."""
    chosen = set(choose_series(layers, run.names, run.folder))
    started = datetime.fromisoformat(run.info["started"]).timestamp()
    name = run.folder.resolve().name
    counted = CountedParts()
    try:
        export = _TRACKERS[address.tracker](address.project, name, run.info, started)
        try:
            for row in _rows_by_step(run, chosen, counted, started, progress):
                export.log(row)
        except BaseException:
            export.end("interrupted", started)
            raise
        export.end(run.info["status"], started + run.info["seconds"])
    except Exception as error:
        if type(error).__module__.partition(".")[0] != address.tracker:
            raise
        raise StoreError(
            f"{address.tracker} cannot write the run: {cause(error)}", _HINTS[address.tracker]
        ) from error
    values = counted.values
    return TrackedRun(*address, name, export.run_id, export.place, len(counted.series), values)


def _rows_by_step(
    run: TrainingRun,
    chosen: set[Series],
    counted: CountedParts,
    started: float,
    progress: Progress | None,
) -> Iterator[ScalarRow]:
    """Yield the rows of all tables, those of one step as one, in the order of the steps."""
    advance = rows_done(run, progress)
    tables = [_rows(counted.of(parts_of(run, table, chosen, advance)), started) for table in TABLES]
    for _, rows in groupby(merge(*tables, key=attrgetter("step")), attrgetter("step")):
        first, *others = rows
        for row in others:
            first.values.update(row.values)
        yield first


def _rows(parts: Iterator[RunPart], started: float) -> Iterator[ScalarRow]:
    for part in parts:
        for row in range(len(part.block)):
            present = part.block.present[row].nonzero()[0]
            values = {part.names[n]: float(part.block.values[row, n]) for n in present}
            time = started + float(part.block.times[row])
            yield ScalarRow(int(part.block.steps[row]), time, values)


def _configuration(info: RunInfo) -> dict[str, Any]:
    """What describes a run, by names that both trackers take."""
    models = {f"model/{model['name']}": model["type"] for model in info["models"]}
    sizes = {f"parameters/{model['name']}": model["parameters"] for model in info["models"]}
    optimizers = {f"optimizer/{one['name']}": one["type"] for one in info["optimizers"]}
    versions = {f"version/{name}": version for name, version in info["versions"].items()}
    return {
        "script": info["script"],
        "arguments": join_words(info["arguments"]),
        "status": info["status"],
        "exit_status": info["exit_status"],
        "steps": info["steps"],
        "seconds": info["seconds"],
        "world_size": info["world_size"],
        **models,
        **sizes,
        **optimizers,
        **versions,
    }


class _WandbRun(TrackedExport):
    """A run of wandb."""

    def __init__(self, project: str, name: str, info: RunInfo, started: float) -> None:
        with optional_package("wandb", "wandb", "Export to wandb"):
            from wandb import Settings, init
        entity, _, project = project.rpartition("/")
        self._exit_status, self._started = info["exit_status"], started
        self._run: Any = init(
            entity=entity or None,
            project=project,
            name=name,
            config=_configuration(info),
            # It describes this process otherwise, which is not that of the training.
            settings=Settings(
                console="off",
                silent=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )
        self.run_id = self._run.id
        self.place = self._run.settings.sync_dir if self._run.offline else self._run.url

    def log(self, row: ScalarRow) -> None:
        """Write the values of a step, with the times at which it was recorded."""
        scalars = {scalar_tag(series): value for series, value in row.values.items()}
        times = {"_timestamp": row.time, "_runtime": row.time - self._started}
        self._run.log({**scalars, **times}, step=row.step)

    def end(self, status: Status, time: float) -> None:
        """End the run; wandb tells how it ended by the exit status alone."""
        failed = status not in ("finished", "running")
        self._run.finish(exit_code=(self._exit_status or 1) if failed else 0)


class _MlflowRun(TrackedExport):
    """A run of MLflow. Its metrics wait until there is a batch of them."""

    def __init__(self, project: str, name: str, info: RunInfo, started: float) -> None:
        with optional_package("mlflow", "mlflow", "Export to MLflow"):
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        self._metric, self._client = Metric, MlflowClient()
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project)
        run = self._client.create_run(number, start_time=int(started * 1000), run_name=name)
        self.run_id = run.info.run_id
        self.place = self._client.tracking_uri
        if self.place.startswith("http"):
            self.place = f"{self.place}/#/experiments/{number}/runs/{self.run_id}"
        self._waiting: list[Any] = []
        self._names = _MetricNames()
        parameters = [
            Param(_NOT_ALLOWED.sub("_", key), str(value)[:_LONGEST])
            for key, value in _configuration(info).items()
        ]
        for first in range(0, len(parameters), _MAX_PARAMETERS):
            batch = parameters[first : first + _MAX_PARAMETERS]
            self._client.log_batch(self.run_id, params=batch)

    def log(self, row: ScalarRow) -> None:
        """Keep the values of a step until there is a batch."""
        time = int(row.time * 1000)
        for series, value in row.values.items():
            self._waiting.append(self._metric(self._names.of(series), value, time, row.step))
        while len(self._waiting) >= _MAX_BATCH:
            self._send()

    def end(self, status: Status, time: float) -> None:
        """Write what is left, and end the run."""
        while self._waiting:
            self._send()
        self._client.set_terminated(self.run_id, _ENDS.get(status, "KILLED"), int(time * 1000))

    def _send(self) -> None:
        batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
        self._client.log_batch(self.run_id, metrics=batch)


class _MetricNames:
    """Names of series in MLflow, which allows few characters, and takes a name for a path.

    >>> names = _MetricNames()
    >>> names.of(Series("Net", "./output", "rms")), names.of(Series("", "loss", "value"))
    ('output.rms/Net/_model', 'loss.value/_run')
    """

    def __init__(self) -> None:
        self._names: dict[Series, str] = {}
        self._taken: set[str] = set()

    def of(self, series: Series) -> str:
        """Return the name of a series: the same each time, and different from all others."""
        if series not in self._names:
            self._names[series] = self._free(series)
            self._taken.add(self._names[series])
        return self._names[series]

    def _free(self, series: Series) -> str:
        # A folder of MLflow cannot have a metric and a folder of one name.
        module = "_model" if series.module == "." else series.module
        owner = series.model or "_run"
        parts = [f"{series.what}.{series.measure}", owner, *([module] if module else [])]
        name = "/".join(_NOT_ALLOWED.sub("_", part.replace("/", "_")) for part in parts)
        free, number = name, 1
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        return free


_TRACKERS: dict[str, Callable[[str, str, RunInfo, float], TrackedExport]] = {
    "wandb": _WandbRun,
    "mlflow": _MlflowRun,
}
_HINTS = {
    "wandb": "Set WANDB_MODE=offline to write to a folder, or log in: wandb login",
    "mlflow": "Check MLFLOW_TRACKING_URI: the address of a server or of a database.",
}
