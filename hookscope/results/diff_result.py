"""The result of comparing two recordings or two models, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from hookscope.results.result import Result

# How a pair was matched.
BY_NAME, BY_MAP, BY_ORDER, BY_FOLD, BY_VALUE = "name", "map", "order", "fold", "value"
# The verdict on a pair: the same numbers, within tolerance, beyond tolerance.
EQUAL, CLOSE, DIFFERS = "equal", "close", "differs"


def count_verdicts(verdicts: Iterable[str]) -> dict[str, int]:
    """Return how often each verdict was passed."""
    counts = Counter(verdicts)
    return {verdict: counts[verdict] for verdict in (EQUAL, CLOSE, DIFFERS)}


@dataclass(frozen=True)
class ErrorMetrics:
    """How two tensors of one shape differ; A's is the reference.

    Attributes:
        max_abs: largest |a - b|, without NaN; None if no entries can be compared.
        max_rel: largest |a - b| / |a|; infinite if a is 0 and b is not.
        cosine: of the angle between the two, as vectors of real numbers; None if either is zero.
        snr: signal-to-noise ratio in decibels, 10 log10(sum |a|^2 / sum |a - b|^2); infinite for
            equal tensors. ``cosine`` and ``snr`` use only entries that are finite in both.
        beyond: number of entries beyond the tolerance.
        unequal: number of entries that are not the same number.
        nan_a: number of entries that are NaN only in A.
        nan_b: number of entries that are NaN only in B.
        nan_both: number of entries that are NaN in both.
    """

    max_abs: float | None = None
    max_rel: float | None = None
    cosine: float | None = None
    snr: float | None = None
    beyond: int = 0
    unequal: int = 0
    nan_a: int = 0
    nan_b: int = 0
    nan_both: int = 0


@dataclass(frozen=True)
class TensorComparison:
    """A pair of a tensor of A and one of B, and how they differ.

    Attributes:
        key: its name in A.
        other: the name of the other tensor in B.
        by: how they were matched: ``name``, ``map``, ``order``, ``fold`` or ``value``.
        type: class name of the module in A.
        shapes: of the two tensors.
        dtypes: of the two tensors.
        numel: number of entries of A's tensor.
        figures: how they differ.
        atol: absolute tolerance for the dtypes of this pair.
        rtol: relative tolerance.
        verdict: ``equal``, ``close`` (within tolerance) or ``differs``.
        reason: why they differ, if not only by their numbers; or why their shapes may differ.
    """

    key: str
    other: str
    by: str
    type: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    numel: int
    figures: ErrorMetrics
    atol: float
    rtol: float
    verdict: str
    reason: str = ""

    @property
    def share(self) -> float | None:
        """Share of entries beyond the tolerance, from 0 to 1; None if the shapes differ."""
        if self.shapes[0] != self.shapes[1] and self.figures.max_abs is None:
            return None
        return self.figures.beyond / self.numel if self.numel else 0.0

    @property
    def error(self) -> float | None:
        """|a - b| / |a| with Euclidean norms; None if the shapes differ.

        Infinite if an entry is finite in one of the two alone, or if A is zero and B is not.
        """
        if self.share is None:
            return None
        figures = self.figures
        if figures.nan_a or figures.nan_b or figures.max_abs == inf:
            return inf
        return 0.0 if figures.snr is None else 10 ** (-figures.snr / 20)

    def to_json(self) -> dict[str, Any]:
        """Return the pair as a flat dict."""
        plain = asdict(self)
        return {**plain, **plain.pop("figures"), "share": self.share}


@dataclass(frozen=True)
class UnmatchedTensor:
    """A tensor that matches none on the other side.

    Attributes:
        key: its name.
        type: class name of the module.
        shape: of the tensor.
        dtype: name of its dtype.
        reason: what became of the module in the other model, if that is an ONNX file; empty if this
            is not known.
    """

    key: str
    type: str
    shape: tuple[int, ...]
    dtype: str
    reason: str = ""


@dataclass(frozen=True)
class DifferingModule:
    """The first module that differs, and what it is in a model and in an ONNX file.

    Attributes:
        names: its name in A and in B.
        descriptions: what it is in A and in B: the class and its arguments, or the operators of the
            file with their attributes; empty if nothing is known.
        equal: names of its parameters and buffers that are equal in both.
        unequal: names of tensors of one shape that differ.
        transposed: names of tensors that one of the two stores transposed.
        model_compared: number of parameters of the whole model that have one name and one shape.
        model_unequal: number of these that differ.
    """

    names: tuple[str, str]
    descriptions: tuple[str, str]
    equal: tuple[str, ...]
    unequal: tuple[str, ...]
    transposed: tuple[str, ...]
    model_compared: int
    model_unequal: int


@dataclass(frozen=True)
class Diff(Result):
    """The result of a comparison.

    Attributes:
        rows: the pairs, in A's order of execution.
        only_a: unmatched tensors of A, in A's order.
        only_b: unmatched tensors of B, in B's order.
        strict: whether unmatched tensors count as differences.
        equal_nan: whether NaN in both counts as equal.
        a: where A came from: its file, model, weights, inputs, versions.
        b: where B came from.
        engines: whether the tolerances are the defaults for two engines.
        module: more on the first module that differs, if one of the two is an ONNX file.
    """

    view = "capture_diff"

    rows: tuple[TensorComparison, ...]
    only_a: tuple[UnmatchedTensor, ...]
    only_b: tuple[UnmatchedTensor, ...]
    strict: bool
    equal_nan: bool
    a: dict[str, Any]
    b: dict[str, Any]
    engines: bool = False
    module: DifferingModule | None = None

    def __repr__(self) -> str:
        text = f"<Diff of {len(self.rows)} tensors: {self.counts[DIFFERS]} differ"
        return f"{text}, the first is {self.first.key}>" if self.first else f"{text}>"

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.first is None and self.matches_all

    @property
    def matches_all(self) -> bool:
        """Whether each tensor has a match, or need not have one."""
        unexplained = any(not tensor.reason for tensor in (*self.only_a, *self.only_b))
        return not (self.strict and unexplained)

    @property
    def first(self) -> TensorComparison | None:
        """The first pair in A's order that is beyond the tolerance."""
        return next((row for row in self.rows if row.verdict == DIFFERS), None)

    @property
    def first_unequal(self) -> TensorComparison | None:
        """The first pair that is not the same numbers, within tolerance or not."""
        return next((row for row in self.rows if row.verdict != EQUAL), None)

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs with each verdict: ``equal``, ``close`` and ``differs``."""
        return count_verdicts(row.verdict for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "first": self.first and self.first.key,
            "first_unequal": self.first_unequal and self.first_unequal.key,
            "counts": self.counts,
            "strict": self.strict,
            "equal_nan": self.equal_nan,
            "engines": self.engines,
            "module": self.module and asdict(self.module),
            "rows": [row.to_json() for row in self.rows],
            "only_a": [asdict(tensor) for tensor in self.only_a],
            "only_b": [asdict(tensor) for tensor in self.only_b],
        }
