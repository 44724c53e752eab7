"""The result of ablating layers one after another, as data, and its file, which can be resumed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from hookscope.files import strict_json
from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import MARK, check_ending, is_hookscope_file
from hookscope.results.records import Coverage
from hookscope.results.result import Result
from hookscope.specs.choices import ABLATION_METRICS
from hookscope.version import __version__

Entry = TypeVar("Entry")

SCHEMA = 1
AblatedPart = tuple[str, int | None]


def unfinished_entries(
    path: str | os.PathLike[str],
    expected: Mapping[str, Any],
    kind: type[Entry],
    name: str,
    numbers: Collection[str],
) -> list[Entry]:
    """Return the entries in a file of the same runs, if it was interrupted; else none."""
    if not is_hookscope_file(Path(path), ".json"):
        return []
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        expected = json.loads(strict_json.dumps(expected))
        made = [kind(**_parse_numbers(entry, numbers)) for entry in document[name]]
        invalid = any(strict_json.fields_type_error(vars(entry), kind) for entry in made)
        same = _without_entries(document, name) == _without_entries(expected, name)
        known = expected.get("fingerprint", "") is not None  # None for offloaded weights
        unfinished = len(made) < document["total"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    return made if known and same and not invalid and unfinished else []


def _without_entries(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k not in (name, "finished")}


def _parse_numbers(entry: Mapping[str, Any], numbers: Collection[str]) -> dict[str, Any]:
    """An entry of a file, with NaN and infinities parsed."""
    return {k: strict_json.parse_number(v) if k in numbers else v for k, v in entry.items()}


@dataclass(frozen=True)
class LayerAblation:
    """The effect of ablating one layer, or one channel of it, in all calls. None: not defined.

    Attributes:
        layer: dotted name of the module.
        type: class name of the module.
        channel: index of the channel, from 0; None for the whole layer.
        score: change of the target's logit, mean over the batch: after minus before.
        loss: change of the loss: after minus before.
        output: Euclidean norm of the difference of the model's outputs, over that of the output
            without ablation; None if their shapes differ.
        flipped: number of decisions whose most likely class changed.
        failed: the model's error, if it could not run with the ablation.
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
        """What was ablated: the layer's name and the channel."""
        return self.layer, self.channel

    def edit(self, operation: str) -> str:
        """Return the value of ``--edit`` that does the same.

        Example:
            >>> LayerAblation("conv1", "Conv2d", 3).edit("zero")
            'conv1[3]=zero'
        """
        return f"{self.layer}{'' if self.channel is None else f'[{self.channel}]'}={operation}"


@dataclass(frozen=True)
class SkippedLayer:
    """A layer that ran and was not ablated, or not in every channel, and the reason."""

    layer: str
    type: str
    reason: str


@dataclass(frozen=True)
class BaselineMetrics:
    """The run without ablation, with which the others are compared.

    Attributes:
        target: the class of the score and the loss, as text; empty if there is none.
        score: the target's logit, mean over the batch.
        loss: value of the loss.
        loss_name: name of the loss; empty if there is none.
        decisions: number of images, or positions in them, that have a most likely class.
    """

    target: str = ""
    score: float | None = None
    loss: float | None = None
    loss_name: str = ""
    decisions: int = 0


@dataclass(frozen=True)
class Ablation(Result):
    """All ablations of a model, the one with the largest effect first.

    Attributes:
        by: ``zero``, ``mean`` or ``noise``.
        edit: the equivalent operation of ``--edit``.
        rank: the metric by which the ablations are sorted.
        total: number of ablations to make.
        clean: the run without ablation.
        ablations: the ablations, sorted by the size of the metric, NaN first; equal ones in the
            order in which the layers ran.
        left_out: layers that ran and could not be ablated.
        coverage: which of the selected layers ran.
        metadata: model, inputs, seed and versions. If a file was written during the runs, also the
            fingerprint of weights, input and output.
        resumed: number of ablations that were read from an unfinished file.
    """

    view = "ablation"

    by: str
    edit: str
    rank: str
    total: int
    clean: BaselineMetrics
    ablations: tuple[LayerAblation, ...]
    left_out: tuple[SkippedLayer, ...]
    coverage: Coverage
    metadata: dict[str, Any]
    resumed: int = 0

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec", "a model")
        text = f"<Ablation of {model}: {len(self.ablations)} ablations, ranked by {self.rank}"
        if not self.ablations:
            return f"{text}>"
        first = self.ablations[0]
        value = getattr(first, self.rank)
        shown = "undefined" if value is None else f"{value:.4g}"
        return f"{text}; largest: {first.edit(self.edit)} {shown}>"

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict, whether it was resumed or not."""
        return {
            **self.metadata,
            **{name: getattr(self, name) for name in ("by", "edit", "rank")},
            "clean": asdict(self.clean),
            "total": self.total,
            "finished": len(self.ablations) == self.total,
            "ablations": [asdict(ablation) for ablation in self.ablations],
            "left_out": [asdict(layer) for layer in self.left_out],
            "coverage": {"matched": self.coverage.matched, **self.coverage.to_json()},
        }

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write ``to_json()`` to a file atomically; return its size in bytes.

        Raises:
            RequestError: the name ends neither in ``.json`` nor in nothing.
            StoreError: the file cannot be written. An earlier file is not changed.
        """
        check_ending(Path(path), ".json")
        return write_text(path, strict_json.dumps(self._document()))

    def unfinished(self, path: str | os.PathLike[str]) -> list[LayerAblation]:
        """Return the ablations in a file of the same run, if it was interrupted; else none."""
        document = self._document()
        return unfinished_entries(path, document, LayerAblation, "ablations", ABLATION_METRICS)

    def _document(self) -> dict[str, Any]:
        return {MARK: __version__, "schema": SCHEMA, **self.to_json()}


def rank_ablations(ablations: Iterable[LayerAblation], metric: str) -> tuple[LayerAblation, ...]:
    """Return the ablations sorted by the size of a metric: NaN, then the largest, undefined last.

    Equal ones keep their order.

    Example:
        >>> a = LayerAblation("a", "ReLU", None, score=1.0)
        >>> b = LayerAblation("b", "ReLU", None, score=-2.0)
        >>> [ablation.layer for ablation in rank_ablations([a, b], "score")]
        ['b', 'a']
    """

    def sort_key(ablation: LayerAblation) -> tuple[int, float]:
        value: float | None = getattr(ablation, metric)
        if value is None:
            return 2, 0.0
        return (0, 0.0) if math.isnan(value) else (1, -abs(value))

    return tuple(sorted(ablations, key=sort_key))
