"""What came of knocking out layers in turn, as data, and the file that it goes on from."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hookscope.files import strict_json
from hookscope.files.atomic_files import write_text
from hookscope.files.strict_json import fields_type_error
from hookscope.results.records import Coverage
from hookscope.specs.output_path import MARK, check_ending, is_hookscope_file
from hookscope.version import __version__

SCHEMA = 1
AblatedPart = tuple[str, int | None]


@dataclass(frozen=True)
class LayerAblation:
    """One layer, or one channel of it, knocked out in all of its calls. None: not defined.

    Attributes:
        layer: dotted name of the module.
        type: class name of the module.
        channel: its index along the channels, from 0; None for the whole layer.
        score: change of the target's logit, mean over the batch: after minus before.
        loss: change of the loss: after minus before.
        output: Euclidean norm of the difference of the model's outputs over that of the clean one;
            None if their shapes differ.
        flipped: for how many decisions the likeliest class changed.
        failed: why there are no figures: what the model said that could not go on.
    """

    layer: str
    type: str
    channel: int | None
    score: float | None = None
    loss: float | None = None
    output: float | None = None
    flipped: int | None = None
    failed: str = ""

    @property
    def place(self) -> AblatedPart:
        """What was knocked out: the layer's name and the channel."""
        return self.layer, self.channel

    def edit(self, operation: str) -> str:
        """Return the word for ``--edit`` that does the same.

        Example:
            >>> Knockout("conv1", "Conv2d", 3).edit("zero")
            'conv1[3]=zero'
        """
        return f"{self.layer}{'' if self.channel is None else f'[{self.channel}]'}={operation}"


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that ran and was not knocked out, or not in every channel, and why."""

    layer: str
    type: str
    reason: str


@dataclass(frozen=True)
class BaselineMetrics:
    """The run with nothing knocked out, whose figures the others are changes of.

    Attributes:
        target: the class of the score and the loss, in words; empty where there is none.
        score: the target's logit, mean over the batch.
        loss: value of the loss.
        loss_name: its word; empty where there is no loss.
        decisions: for how many images, or positions in them, there is a likeliest class.
    """

    target: str = ""
    score: float | None = None
    loss: float | None = None
    loss_name: str = ""
    decisions: int = 0


@dataclass(frozen=True)
class Ablation:
    """All knock-outs of a model, the one that moves the most first.

    Attributes:
        by: ``zero``, ``mean`` or ``noise``.
        edit: the operation of ``--edit`` that this is.
        rank: the figure that the knock-outs are sorted by.
        total: how many knock-outs were to be made.
        clean: the run that they are compared with.
        knockouts: by the size of the figure, NaN before everything; equal ones in the order in
            which the layers ran.
        left_out: layers that ran and could not be knocked out.
        coverage: which of the chosen layers ran.
        metadata: model, inputs, seed, versions, and a fingerprint of weights, input and output.
        resumed: how many of the knock-outs came from an unfinished file.
    """

    by: str
    edit: str
    rank: str
    total: int
    clean: BaselineMetrics
    knockouts: tuple[LayerAblation, ...]
    left_out: tuple[SkippedLayer, ...]
    coverage: Coverage
    metadata: dict[str, Any]
    resumed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict, whether it was resumed or not."""
        return {
            **self.metadata,
            **{name: getattr(self, name) for name in ("by", "edit", "rank")},
            "clean": asdict(self.clean),
            "total": self.total,
            "finished": len(self.knockouts) == self.total,
            "knockouts": [asdict(knockout) for knockout in self.knockouts],
            "left_out": [asdict(layer) for layer in self.left_out],
            "coverage": {
                "matched": self.coverage.matched,
                "fired": [asdict(module) for module in self.coverage.executed],
                "silent": [asdict(module) for module in self.coverage.not_executed],
            },
        }

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write ``to_json()`` to a file, whole or not at all; return its size in bytes.

        Raises:
            RequestError: the name ends neither in ``.json`` nor in nothing.
            StoreError: the file cannot be written. An earlier one is then as it was.
        """
        check_ending(Path(path), ".json")
        return write_text(path, strict_json.dumps(self._document()))

    def unfinished(self, path: str | os.PathLike[str]) -> list[LayerAblation]:
        """Return what a file holds of this very ablation, if it was interrupted; else nothing."""
        if not is_hookscope_file(Path(path), ".json"):
            return []
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            wanted = json.loads(strict_json.dumps(self._document()))
            made = [LayerAblation(**_numbers(entry)) for entry in found["knockouts"]]
            unsound = any(fields_type_error(vars(one), LayerAblation) for one in made)
            same = [_without_results(one) for one in (found, wanted)]
            known = wanted.get("fingerprint", "") is not None  # some values are out of reach
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return []
        own = known and same[0] == same[1] and len(made) < self.total and not unsound
        return made if own else []

    def _document(self) -> dict[str, Any]:
        return {MARK: __version__, "schema": SCHEMA, **self.to_json()}


def rank_ablations(knockouts: Iterable[LayerAblation], figure: str) -> tuple[LayerAblation, ...]:
    """Return the knock-outs by the size of a figure: NaN first, then the largest, undefined last.

    Equal ones stay in the order given.

    Example:
        >>> made = [Knockout(name, "ReLU", None, score=s) for name, s in [("a", 1.0), ("b", -2.0)]]
        >>> [knockout.layer for knockout in ranked(made, "score")]
        ['b', 'a']
    """

    def weight(knockout: LayerAblation) -> tuple[int, float]:
        value: float | None = getattr(knockout, figure)
        if value is None:
            return 2, 0.0
        return (0, 0.0) if math.isnan(value) else (1, -abs(value))

    return tuple(sorted(knockouts, key=weight))


def _without_results(document: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k not in ("knockouts", "finished")}


def _numbers(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a file with its NaN and infinities read back."""
    figures = ("score", "loss", "output")
    return {k: strict_json.parse_number(v) if k in figures else v for k, v in entry.items()}
