"""Runs of a model with one change each, and their file; a sweep, whose change is one edit."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from hookscope.files import strict_json
from hookscope.files.output_path import is_hookscope_file
from hookscope.results.records import Coverage
from hookscope.results.result import Result
from hookscope.specs.choices import SWEEP_METRICS

SweepPlace = tuple[str, int]


class RunEffect(Protocol):
    """The effect of one change, or the reason why the model failed with it."""

    @property
    def layer(self) -> str:
        """Name of the changed layer."""

    @property
    def place(self) -> Hashable:
        """What was changed."""

    @property
    def failed(self) -> str:
        """The model's error; empty if it ran."""


Effect = TypeVar("Effect", bound=RunEffect)
Runs = TypeVar("Runs", bound="ChangedRuns[Any]")


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that ran and was not changed, or not in every channel, and the reason."""

    layer: str
    type: str
    reason: str


class ChangedRuns(Result, Generic[Effect]):
    """The effects of runs with one change each, and their file, which can be resumed.

    Attributes:
        settings: names of what was asked for, as in the file.
        entries: name of the effects.
        entry: their class.
        numbers: those of its fields that are floats.
    """

    settings: ClassVar[tuple[str, ...]]
    entries: ClassVar[str]
    entry: ClassVar[type[Any]]
    numbers: ClassVar[Collection[str]]

    total: int
    clean: Any
    left_out: tuple[SkippedLayer, ...]
    coverage: Coverage
    metadata: dict[str, Any]

    def with_effects(self: Runs, effects: Sequence[Effect], resumed: int) -> Runs:
        """Return the result with these effects, of which ``resumed`` were read from a file."""
        changes: dict[str, Any] = {self.entries: self._in_order(effects), "resumed": resumed}
        return replace(self, **changes)  # type: ignore[type-var]

    def _in_order(self, effects: Sequence[Effect]) -> tuple[Effect, ...]:
        return tuple(effects)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict, whether it was resumed or not."""
        effects = getattr(self, self.entries)
        return {
            **self.metadata,
            **{name: getattr(self, name) for name in self.settings},
            "clean": asdict(self.clean),
            "total": self.total,
            "finished": len(effects) == self.total,
            **self._axes(),
            self.entries: [asdict(effect) for effect in effects],
            "left_out": [asdict(layer) for layer in self.left_out],
            "coverage": {"matched": self.coverage.matched, **self.coverage.to_json()},
        }

    def _axes(self) -> dict[str, Any]:
        return {}

    def unfinished(self, path: str | os.PathLike[str]) -> list[Effect]:
        """Return the effects in a file of the same runs, if it was interrupted; else none."""
        if not is_hookscope_file(Path(path), ".json"):
            return []
        try:
            document = strict_json.loads(Path(path).read_text(encoding="utf-8"))
            expected = strict_json.loads(strict_json.dumps(self.to_document()))
            made = [self.entry(**self._parse_numbers(entry)) for entry in document[self.entries]]
            invalid = any(strict_json.fields_type_error(vars(entry), self.entry) for entry in made)
            same = self._without_entries(document) == self._without_entries(expected)
            known = expected.get("fingerprint", "") is not None  # None for offloaded weights
            unfinished = len(made) < document["total"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return []
        return made if known and same and not invalid and unfinished else []

    def _without_entries(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in document.items() if k not in (self.entries, "finished")}

    def _parse_numbers(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """An entry of a file, with NaN and infinities parsed."""
        return {
            k: strict_json.parse_number(v) if k in self.numbers else v for k, v in entry.items()
        }


@dataclass(frozen=True)
class SweepColumn:
    """A place in each layer: a position, a head, or the whole layer.

    Attributes:
        name: the position as in ``LAYER@NAME``, or the number of the head; empty for all of it.
        label: the text of the token at the position; else the name.
    """

    name: str = ""
    label: str = ""


@dataclass(frozen=True)
class SweepCell:
    """The effect of the edit at one place: changes against the run without it. None: not defined.

    Attributes:
        layer: dotted name of the module.
        type: class name of the module.
        column: index of the place in the columns of the sweep.
        difference: change of the logit of the target minus that of the other class, mean over the
            rows.
        score: change of the target's logit, mean over the rows.
        loss: change of the loss.
        kl: Kullback-Leibler divergence of the prediction with the edit from the one without,
            sum of p log(p / q) with p without the edit and q with it, in nats, mean over the rows.
        output: Euclidean norm of the change of the model's output over the norm of the output.
        flipped: number of predictions whose most likely class changed.
        failed: the model's error, if it could not run with the edit.
    """

    layer: str
    type: str
    column: int = 0
    difference: float | None = None
    score: float | None = None
    loss: float | None = None
    kl: float | None = None
    output: float | None = None
    flipped: int | None = None
    failed: str = ""

    @property
    def place(self) -> SweepPlace:
        """The layer's name and the index of the column."""
        return self.layer, self.column

    def metric(self, name: str) -> float | None:
        """Return a metric by its name; None if it is not defined."""
        value: float | None = getattr(self, name)
        return value


@dataclass(frozen=True)
class SweepBaseline:
    """The run without an edit.

    Attributes:
        target: the class of the score, the loss and the difference, as text; empty without one.
        against: the class that is subtracted in the difference, as text; empty without one.
        read_at: where the predictions are read: ``after the last token``, or empty for all.
        difference: logit of the target minus that of the other class, mean over the rows.
        score: the target's logit, mean over the rows.
        loss: value of the loss.
        loss_name: name of the loss; empty without one.
        decisions: number of predictions that have a most likely class.
    """

    target: str = ""
    against: str = ""
    read_at: str = ""
    difference: float | None = None
    score: float | None = None
    loss: float | None = None
    loss_name: str = ""
    decisions: int = 0


@dataclass(frozen=True)
class Sweep(ChangedRuns[SweepCell]):
    """The effect of one edit at each layer, or at each position, head or expert of each layer.

    Attributes:
        edit: the operation, as typed.
        axis: what the columns are: ``position``, ``head``, ``expert``, or empty for whole layers.
        metric: the metric of the map.
        total: number of cells.
        clean: the run without an edit.
        layers: names of the layers, in execution order.
        columns: the places in each layer.
        cells: by layer, then column.
        left_out: layers that ran and that the edit does not fit.
        coverage: which of the selected layers ran.
        reuse: a sentence: which outputs of the clean run were used again, or why none.
        metadata: model, inputs, seed and versions. If a file was written during the runs, also the
            fingerprint of weights, input and output.
        resumed: number of cells that were read from an unfinished file.

    Example:
        >>> clean = SweepBaseline(score=1.0)
        >>> cells = (SweepCell("fc", "Linear", score=-0.5),)
        >>> sweep = Sweep("zero", "", "score", 1, clean, ("fc",), (SweepColumn(),), cells,
        ...               (), Coverage(), "", {})
        >>> sweep.cell("fc").score
        -0.5
    """

    view = "sweep"
    settings = ("edit", "axis", "metric", "reuse")
    entries, entry, numbers = "cells", SweepCell, SWEEP_METRICS

    edit: str
    axis: str
    metric: str
    total: int
    clean: SweepBaseline
    layers: tuple[str, ...]
    columns: tuple[SweepColumn, ...]
    cells: tuple[SweepCell, ...]
    left_out: tuple[SkippedLayer, ...]
    coverage: Coverage
    reuse: str
    metadata: dict[str, Any]
    resumed: int = 0

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec", "a model")
        size = f"{len(self.layers)} layers"
        if self.axis:
            size += f" by {len(self.columns)} {self.axis}s"
        return f"<Sweep of {model}: {self.edit}, {size}, {self.metric}>"

    def cell(self, layer: str, column: int | str = 0) -> SweepCell:
        """Return one cell.

        Args:
            layer: a name in ``layers``.
            column: index of the column, or its name, such as ``"3"`` for ``@3``.

        Raises:
            KeyError: there is no such cell.
        """
        if isinstance(column, str):
            names = [each.name for each in self.columns]
            column = names.index(column) if column in names else -1
        for cell in self.cells:
            if cell.place == (layer, column):
                return cell
        raise KeyError((layer, column))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are defined, the map's first."""
        names = [n for n in SWEEP_METRICS if n == "kl" or n == "output" or self._defined(n)]
        if not self.clean.decisions:
            names.remove("kl")
        return tuple(sorted(names, key=lambda name: name != self.metric))

    def _defined(self, name: str) -> bool:
        return getattr(self.clean, name) is not None

    def by_layer(self) -> Iterator[tuple[str, list[SweepCell | None]]]:
        """Yield each layer with its cells in order of the columns; None for a missing one."""
        cells = {cell.place: cell for cell in self.cells}
        for layer in self.layers:
            yield layer, [cells.get((layer, n)) for n in range(len(self.columns))]

    def _axes(self) -> dict[str, Any]:
        return {
            "layers": list(self.layers),
            "columns": [asdict(column) for column in self.columns],
        }
