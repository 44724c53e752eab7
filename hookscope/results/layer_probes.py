"""The result of probing layers: how well a linear model reads labels from each."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.result import Result
from hookscope.specs.features_options import LOGISTIC


@dataclass(frozen=True)
class ProbeSplit:
    """One split of the rows.

    Attributes:
        seed: ``random_state`` of scikit-learn's ``train_test_split``; stratified for classes.
        train: number of training rows.
        test: number of rows that were held out.
        test_sha256: SHA-256 of the numbers of the held-out rows, ascending, as little-endian int64.
        baseline: held-out score without features: of the most frequent class, or of the mean.
    """

    seed: int
    train: int
    test: int
    test_sha256: str
    baseline: float


@dataclass(frozen=True)
class ProbedLayer:
    """One layer.

    Attributes:
        key: the name of its tensor in the folder.
        shape: of one row, which is flattened.
        scores: held-out accuracy or R^2 of each split; empty if the layer was not probed.
        train_scores: the same on the training rows.
        problem: why it was not probed, or that a fit did not converge; empty for neither.
    """

    key: str
    shape: tuple[int, ...]
    scores: tuple[float, ...]
    train_scores: tuple[float, ...]
    problem: str = ""

    @property
    def mean(self) -> float:
        """The mean of the held-out scores; NaN if there are none."""
        return _mean(self.scores)

    @property
    def spread(self) -> float:
        """The standard deviation of the held-out scores over the splits (of a sample)."""
        if len(self.scores) < 2:
            return math.nan
        squares = sum((score - self.mean) ** 2 for score in self.scores)
        return math.sqrt(squares / (len(self.scores) - 1))

    @property
    def train_mean(self) -> float:
        """The mean of the training scores."""
        return _mean(self.train_scores)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values) if values else math.nan


@dataclass(frozen=True)
class LayerProbes(Result):
    """How well labels can be read from layers.

    Attributes:
        folder: the features folder.
        model: the model that made the features.
        labels: the column or file of the labels.
        method: ``logistic`` or ``ridge``.
        classes: the number of rows of each class; empty for numbers.
        layers: in the order of the folder, which is that of execution.
        splits: how rows were split.
        l2: strength of the penalty.
        notes: what was left out, in sentences.
        versions: of hookscope, numpy and scikit-learn.
    """

    view = "layer_probes"

    folder: str
    model: str
    labels: str
    method: str
    classes: dict[str, int]
    layers: tuple[ProbedLayer, ...]
    splits: tuple[ProbeSplit, ...]
    l2: float
    notes: tuple[str, ...]
    versions: dict[str, str]

    def __repr__(self) -> str:
        return f"<LayerProbes of {self.labels}: {len(self.layers)} layers, {self.score}>"

    @property
    def score(self) -> str:
        """The name of the score: ``accuracy``, or ``R2`` for numbers."""
        return "accuracy" if self.method == LOGISTIC else "R2"

    @property
    def baseline(self) -> float:
        """The mean of the held-out scores without features."""
        return _mean(tuple(split.baseline for split in self.splits))

    def layer(self, name: str) -> ProbedLayer:
        """Return a layer by its key or its name.

        Raises:
            KeyError: there is no such layer.
        """
        for layer in self.layers:
            if name in (layer.key, layer.key.rpartition("/")[0]):
                return layer
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        layers = [
            {**asdict(layer), "mean": layer.mean, "std": layer.spread} for layer in self.layers
        ]
        return {**asdict(self), "score": self.score, "baseline": self.baseline, "layers": layers}
