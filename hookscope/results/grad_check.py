"""The result of comparing a backward pass with numerical gradients, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.result import Result


@dataclass(frozen=True)
class Derivative:
    """The derivative of the output at ``output_index`` by the input at ``input_index``."""

    input_index: tuple[int, ...]
    output_index: tuple[int, ...]
    analytical: float
    numerical: float
    difference: float


@dataclass(frozen=True)
class GradientComparison:
    """The derivatives of one output by one input.

    Attributes:
        input: ``input.0``, or ``input.NAME`` for a keyword argument, or the name of a parameter.
        output: ``output``, or with the path to a nested tensor.
        input_shape: shape of the input.
        output_shape: shape of the output.
        compared: number of derivatives.
        wrong: number of derivatives that differ by more than the tolerance.
        farthest: the derivative with the largest difference; if some are wrong, the worst five.
        note: a remark, such as that backward returned no gradient at all.
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
class GradCheck(Result):
    """The result of checking a model's backward pass.

    Attributes:
        comparisons: one for each pair of an input and an output.
        eps: half the width of a central difference.
        atol: absolute tolerance.
        rtol: relative tolerance.
        metadata: model, inputs, seed and versions.
        unvaried: description of what was not varied and so not checked; empty if nothing.
    """

    view = "grad_check"

    comparisons: tuple[GradientComparison, ...]
    eps: float
    atol: float
    rtol: float
    metadata: dict[str, Any]
    unvaried: str = ""

    def __repr__(self) -> str:
        model = self.metadata.get("model", {}).get("spec", "a model")
        compared = sum(comparison.compared for comparison in self.comparisons)
        wrong = sum(comparison.wrong for comparison in self.comparisons)
        return f"<GradCheck of {model}: {wrong} of {compared} derivatives differ>"

    @property
    def ok(self) -> bool:
        """Whether every derivative agrees."""
        return not any(comparison.wrong for comparison in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            **self.metadata,
            "ok": self.ok,
            "eps": self.eps,
            "atol": self.atol,
            "rtol": self.rtol,
            "unvaried": self.unvaried,
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }
