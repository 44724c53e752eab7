"""The result of ``attribute``: what each token of the input contributes to a score."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.lens import Token
from hookscope.results.result import Result

TOLERANCE = 0.05  # of the gap of integrated gradients, as a share of the difference of the scores


@dataclass(frozen=True)
class TokenAttribution:
    """What one token contributes.

    Attributes:
        position: from 0, padding included.
        token: the token.
        score: its attribution, in the unit of the target's score.
    """

    position: int
    token: Token
    score: float


@dataclass(frozen=True)
class AttributionRow:
    """One text of the batch.

    Attributes:
        tokens: those that are not padding.
        target: the token or class whose score is explained.
        position: the position after which it is predicted; None for a classifier.
        score: the logit of the target, less that of ``against``.
        baseline_score: the same with the baseline in place of every token; None for ``rollout``.
    """

    tokens: tuple[TokenAttribution, ...]
    target: Token
    position: int | None
    score: float
    baseline_score: float | None

    @property
    def total(self) -> float:
        """The sum of the attributions."""
        return float(sum(one.score for one in self.tokens))

    @property
    def difference(self) -> float | None:
        """The score less that of the baseline; None for ``rollout``."""
        return None if self.baseline_score is None else self.score - self.baseline_score

    @property
    def adds_up(self) -> bool:
        """Whether the sum is the difference, up to ``TOLERANCE`` of it; True for ``rollout``."""
        if self.difference is None or not math.isfinite(self.total):
            return True
        return abs(self.total - self.difference) <= TOLERANCE * abs(self.difference)


@dataclass(frozen=True)
class Attribution(Result):
    """What each token of the input contributes to the score of a target.

    Attributes:
        method: its name, such as ``integrated``.
        formula: the attribution of a token.
        paper: where the method was published.
        layer: the embedding, whose output is differentiated or replaced.
        baseline: what takes the place of a token: ``zero``, ``mean``, or a token in quotes.
        against: the token or class whose logit is subtracted; None without one.
        steps: points of the quadrature; None for methods without one.
        rows: the texts of the batch.
        notes: what the reader should know, such as a sum that misses the difference of the scores.
        metadata: model, inputs, seed and versions.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
        >>> tokens = torch.tensor([[3, 1, 4]])
        >>> found = hookscope.attribute(net, input=tokens, by="occlusion", target=5)
        >>> found
        <Attribution of Sequential by occlusion: 3 tokens>
        >>> found.rows[0].target.index, [one.position for _, one in found.cells()]
        (5, [0, 1, 2])
    """

    view = "attribution"

    method: str
    formula: str
    paper: str
    layer: str
    baseline: str
    against: Token | None
    steps: int | None
    rows: tuple[AttributionRow, ...]
    notes: tuple[str, ...]
    metadata: dict[str, Any]

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec", "a model")
        count = sum(len(row.tokens) for row in self.rows)
        return f"<Attribution of {model} by {self.method}: {count} tokens>"

    def cells(self) -> Iterator[tuple[int, TokenAttribution]]:
        """Yield each token with the number of its text."""
        for number, row in enumerate(self.rows):
            for one in row.tokens:
                yield number, one

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            **self.metadata,
            "method": self.method,
            "formula": self.formula,
            "paper": self.paper,
            "layer": self.layer,
            "baseline": self.baseline,
            "against": None if self.against is None else asdict(self.against),
            "steps": self.steps,
            "rows": [
                {**asdict(row), "total": row.total, "difference": row.difference}
                for row in self.rows
            ],
            "notes": list(self.notes),
        }
