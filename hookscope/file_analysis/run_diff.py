"""Two training runs compared: the first step and layer where they differ, as data. Torch-free."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.result import Result
from hookscope.stores.runs.series import (
    OUTPUT,
    OUTPUT_GRAD,
    PARAMETER,
    PARAMETER_GRAD,
    UPDATE,
)

BATCH, LOSS, LOSS_SCALE, LEARNING_RATE, TOTAL = (
    *("batch", "loss", "loss_scale", "lr", "gradients"),
)
# The kinds of series in the order of a step. Weights are measured before it, but their differences
# come from an earlier step, or from the initialization.
KINDS = (
    *(BATCH, OUTPUT, LOSS, OUTPUT_GRAD, PARAMETER_GRAD, TOTAL),
    *(LOSS_SCALE, LEARNING_RATE, UPDATE, PARAMETER),
)


@dataclass(frozen=True)
class RunDifference:
    """One number that differs between two runs."""

    kind: str
    step: int
    model: str
    layer: str
    key: str
    measure: str
    a: float
    b: float
    rank: int | None = None


@dataclass(frozen=True)
class KindComparison:
    """How the series of one kind differ."""

    kind: str
    series: int
    differing: int
    first: RunDifference | None


@dataclass(frozen=True)
class RunDiffs(Result):
    """The first of several runs compared with each of the others.

    Attributes:
        diffs: one for each of the others; A is the first run in all of them.
    """

    view = "run_diff.DIFFS"

    diffs: tuple[RunDiff, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs in any of them."""
        return all(diff.same for diff in self.diffs)

    def to_json(self) -> dict[str, Any]:
        """Return the results as a plain dict."""
        return {"same": self.same, "diffs": [diff.to_json() for diff in self.diffs]}


@dataclass(frozen=True)
class RunDiff(Result):
    """The result of comparing two runs at the steps that both have.

    Attributes:
        rows: one for each kind of series, in the order of a step.
        only_a: series of A that B does not have, as ``KEY MEASURE``, and ranks, as ``rank 1``.
        only_b: those of B that A does not have.
        steps: number of steps in A, in B and in both; of several ranks, those of the shortest.
        sampled: number of sampled steps in A, in B and in both.
        atol: values match if ``|a - b| <= atol + rtol * |a|``, or if both are NaN.
        rtol: the relative part of the tolerance.
        strict: whether series and steps of only one run count as differences.
        a: what is known of A: its folder, script, arguments, status and ranks.
        b: what is known of B.
    """

    view = "run_diff"

    rows: tuple[KindComparison, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    steps: tuple[int, int, int]
    sampled: tuple[int, int, int]
    atol: float
    rtol: float
    strict: bool
    a: dict[str, Any]
    b: dict[str, Any]

    def __repr__(self) -> str:
        place = f"first at step {self.first.step}, {self.first.key}" if self.first else "same"
        return f"<RunDiff of {self.steps[2]:,} steps: {place}>"

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        matched = not (self.only_a or self.only_b)
        for of_a, of_b, both in (self.steps, self.sampled):
            matched = matched and of_a == of_b == both
        return self.first is None and (matched or not self.strict)

    @property
    def first(self) -> RunDifference | None:
        """The first difference: of the earliest step, and in it the first of ``KINDS``."""
        found = [row.first for row in self.rows if row.first]
        return min(found, key=lambda one: (one.step, KINDS.index(one.kind)), default=None)

    @property
    def first_layer(self) -> RunDifference | None:
        """The first difference in a layer."""
        found = [row.first for row in self.rows if row.first and row.first.layer]
        return min(found, key=lambda one: (one.step, KINDS.index(one.kind)), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        first, layer = self.first, self.first_layer
        return {
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "first": first and asdict(first),
            "first_layer": layer and asdict(layer),
            "steps": dict(zip(("a", "b", "both"), self.steps, strict=True)),
            "sampled": dict(zip(("a", "b", "both"), self.sampled, strict=True)),
            "atol": self.atol,
            "rtol": self.rtol,
            "strict": self.strict,
            "rows": [asdict(row) for row in self.rows],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }
