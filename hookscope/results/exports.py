"""The results of exports: what was written to one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hookscope.results.result import Result


class ExportedTensor(Protocol):
    """Rows of features, or a tensor of a capture: both have a key, a shape and a dtype."""

    @property
    def key(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dtype(self) -> Any: ...  # noqa: D102


@dataclass(frozen=True)
class Exported(Result):
    """The result of an export.

    Attributes:
        path: the file.
        bytes: its size.
        rows: its contents, one entry for each key.
    """

    view = "features.EXPORTED"

    path: Path
    bytes: int
    rows: tuple[ExportedTensor, ...]

    def __repr__(self) -> str:
        return f"<Exported {self.path}: {len(self.rows)} tensors, {self.bytes} bytes>"

    def to_json(self) -> dict[str, Any]:
        """Return ``file``, ``bytes``, and ``keys``, each with its shape and dtype."""
        keys = [{"key": r.key, "shape": r.shape, "dtype": str(r.dtype)} for r in self.rows]
        return {"file": str(self.path), "bytes": self.bytes, "keys": keys}


@dataclass(frozen=True)
class TrackedRun(Result):
    """The result of an export of a run to an experiment tracker.

    Attributes:
        tracker: ``wandb`` or ``mlflow``.
        project: the project of wandb or the experiment of MLflow.
        name: name of the run.
        run_id: its id there.
        place: its page, or the folder that has it.
        series: how many series it has.
        values: how many values.
    """

    view = "training_run.TRACKED"

    tracker: str
    project: str
    name: str
    run_id: str
    place: str
    series: int
    values: int

    def to_json(self) -> dict[str, Any]:
        """Return the attributes."""
        return dict(vars(self))


@dataclass(frozen=True)
class ExportedRun(Result):
    """The result of an export of a run.

    Attributes:
        path: the file.
        bytes: its size.
        series: how many series it has.
        values: how many values.
    """

    view = "training_run.EXPORTED"

    path: Path
    bytes: int
    series: int
    values: int

    def to_json(self) -> dict[str, Any]:
        """Return ``file``, ``bytes``, ``series`` and ``values``."""
        counts = {"series": self.series, "values": self.values}
        return {"file": str(self.path), "bytes": self.bytes, **counts}
