"""The result of ablating layers one after another, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.results.records import Coverage
from hookscope.results.sweep import ChangedRuns, SkippedLayer
from hookscope.specs.choices import ABLATION_METRICS

AblatedPart = tuple[str, int | None]


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
class Ablation(ChangedRuns[LayerAblation]):
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

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Flatten())
        >>> found = hookscope.ablate(net, layers=["0"], input=torch.ones(2, 4), rank="output")
        >>> found
        <Ablation of Sequential: 1 ablations, ranked by output; largest: 0=zero 1>
        >>> found.ablations[0].layer, found.ablations[0].output
        ('0', 1.0)
    """

    view = "ablation"
    settings = ("by", "edit", "rank")
    entries, entry, numbers = "ablations", LayerAblation, ABLATION_METRICS

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

    def _in_order(self, effects: Sequence[LayerAblation]) -> tuple[LayerAblation, ...]:
        return rank_ablations(effects, self.rank)


def rank_ablations(ablations: Iterable[LayerAblation], metric: str) -> tuple[LayerAblation, ...]:
    """Return the ablations by the size of a metric: NaN first, undefined last; stable."""

    def sort_key(ablation: LayerAblation) -> tuple[int, float]:
        value: float | None = getattr(ablation, metric)
        if value is None:
            return 2, 0.0
        return (0, 0.0) if math.isnan(value) else (1, -abs(value))

    return tuple(sorted(ablations, key=sort_key))
