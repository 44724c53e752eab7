"""What came of holding a backward against numerical gradients, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Derivative:
    """One derivative: of the output at ``output_index`` by the input at ``input_index``."""

    input_index: tuple[int, ...]
    output_index: tuple[int, ...]
    analytical: float
    numerical: float
    difference: float


@dataclass(frozen=True)
class GradientComparison:
    """The derivatives of one output by one input.

    Attributes:
        input: ``input.0``, or with a name for a keyword argument; for a parameter its name.
        output: ``output``, or with the path to a nested one.
        input_shape: its lengths.
        output_shape: its lengths.
        compared: how many derivatives there are.
        wrong: how many of them part by more than the tolerance.
        farthest: the entry of the largest difference; where some part, the largest five that do.
        note: what else is to be known, such as that backward gave no gradient at all.
    """

    input: str
    output: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    compared: int
    wrong: int
    farthest: tuple[Derivative, ...]
    note: str = ""


@dataclass(frozen=True)
class GradCheck:
    """What came of checking a model's backward.

    Attributes:
        comparisons: one for each pair of an input and an output.
        eps: half the width of a central difference.
        atol: absolute tolerance.
        rtol: relative tolerance.
        metadata: model, inputs, seed and versions.
        unvaried: what was not varied and so not checked, in words; empty if nothing.
    """

    comparisons: tuple[GradientComparison, ...]
    eps: float
    atol: float
    rtol: float
    metadata: dict[str, Any]
    unvaried: str = ""

    @property
    def ok(self) -> bool:
        """Whether every derivative agrees."""
        return not any(comparison.wrong for comparison in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        told = {"ok": self.ok, "eps": self.eps, "atol": self.atol, "rtol": self.rtol}
        comparisons = [asdict(comparison) for comparison in self.comparisons]
        return {**self.metadata, **told, "unvaried": self.unvaried, "comparisons": comparisons}
