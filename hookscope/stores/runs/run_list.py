"""The training runs in a folder, with the loss and the status of each. Torch-free."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookscope.errors import ResultsFileError
from hookscope.files.output_path import runs_in
from hookscope.results.result import Result
from hookscope.stores.runs.rank_runs import open_run
from hookscope.stores.runs.series import LOSS
from hookscope.stores.runs.training_run import TrainingRun


@dataclass(frozen=True)
class ListedRun:
    """One run of a list."""

    name: str
    script: str = ""
    status: str = ""
    steps: int = 0
    seconds: float = 0.0
    started: str = ""
    first_loss: float | None = None
    last_loss: float | None = None
    least_loss: float | None = None
    error: str = ""


@dataclass(frozen=True)
class RunList(Result):
    """The runs in a folder.

    Attributes:
        folder: the folder.
        runs: in the order of their names.
    """

    view = "run_list"

    folder: Path
    runs: tuple[ListedRun, ...]

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> RunList:
        """Read what is known of each run in a folder; one that is damaged has its error."""
        return cls(Path(folder), tuple(_listed(path) for path in runs_in(folder)))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of each run."""
        return {"runs": [asdict(run) for run in self.runs]}


def _listed(folder: Path) -> ListedRun:
    try:
        run = open_run(folder)
        first, last, least = _losses(run)
    except ResultsFileError as error:
        return ListedRun(folder.name, error=error.message)
    info = run.info
    script = " ".join([info["script"], *info["arguments"]])
    known = (script, info["status"], info["steps"], info["seconds"], info["started"])
    return ListedRun(folder.name, *known, first, last, least)


def _losses(run: TrainingRun) -> tuple[float | None, float | None, float | None]:
    if LOSS not in run.steps:
        return None, None, None
    values = run.steps.curve(LOSS).values
    finite = values[np.isfinite(values)]
    return float(values[0]), float(values[-1]), float(finite.min()) if len(finite) else None
