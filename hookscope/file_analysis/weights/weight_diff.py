"""The result of comparing two sets of weights, as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.results.diff_result import CLOSE, DIFFERS, EQUAL
from hookscope.results.result import Result
from hookscope.stores.weights.weight_set import WeightTensor


@dataclass(frozen=True)
class ChangeMeasures:
    """How the weights of B differ from those of A, over all their entries.

    Sums are computed in float64, over the entries that are finite in both. A measure that is not
    defined is None.
    """

    distance: float | None
    norm_change: float | None
    cosine: float | None
    largest: float | None
    norms: tuple[float, float]
    changed: int
    beyond: int
    nan_a: int
    nan_b: int
    nan_both: int

    @property
    def from_zero(self) -> bool:
        """Whether A is zero and B is not, so that no relative change is defined."""
        return self.norms[0] == 0 < self.norms[1]


@dataclass(frozen=True)
class WeightChange:
    """A tensor of A and the tensor of B with the same name."""

    name: str
    other: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    numel: int
    measures: ChangeMeasures | None
    verdict: str

    @property
    def share(self) -> float | None:
        """Share of entries that changed, from 0 to 1; None if the shapes differ."""
        if self.measures is None:
            return None
        return self.measures.changed / self.numel if self.numel else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the pair as a flat dict."""
        plain = asdict(self)
        measures = plain.pop("measures") or {}
        return {**plain, **measures, "share": self.share}


@dataclass(frozen=True)
class WeightSide:
    """One of the two sets of weights."""

    path: str
    kind: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True)
class WeightDiff(Result):
    """The result of comparing two sets of weights; A is the reference.

    Attributes:
        rows: the tensors that are in both, the most changed first: other shapes, NaN in one alone,
            then by ``distance``, then those that are zero in A alone, then equal ones.
        only_a: tensors of A that are not in B, in A's order.
        only_b: tensors of B that are not in A, in B's order.
        tied: names in A, or in B alone, of tensors that share the values of a compared tensor.
        total: the measures of all compared tensors together.
        atol: entries match if ``|a - b| <= atol + rtol * |a|``.
        rtol: the relative part of the tolerance.
        strict: whether another dtype counts as a difference.
        a: what was compared.
        b: what it was compared with.
        notes: what was removed from names or left out, in sentences.
    """

    view = "weight_diff"

    rows: tuple[WeightChange, ...]
    only_a: tuple[WeightTensor, ...]
    only_b: tuple[WeightTensor, ...]
    tied: tuple[str, ...]
    total: ChangeMeasures
    atol: float
    rtol: float
    strict: bool
    a: WeightSide
    b: WeightSide
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        text = f"<WeightDiff of {len(self.rows)} tensors: {self.counts[DIFFERS]} differ"
        return f"{text}, {len(self.only_a)} only in A, {len(self.only_b)} only in B>"

    @property
    def same(self) -> bool:
        """Whether both have the same tensors, and no entry is beyond the tolerance."""
        return not (self.counts[DIFFERS] or self.only_a or self.only_b)

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs with each verdict: ``equal``, ``close`` and ``differs``."""
        counts = Counter(row.verdict for row in self.rows)
        return {verdict: counts[verdict] for verdict in (EQUAL, CLOSE, DIFFERS)}

    @property
    def numel(self) -> int:
        """The number of entries that were compared."""
        return sum(row.numel for row in self.rows if row.measures is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            "a": asdict(self.a),
            "b": asdict(self.b),
            "same": self.same,
            "counts": self.counts,
            "total": {**asdict(self.total), "numel": self.numel},
            "atol": self.atol,
            "rtol": self.rtol,
            "strict": self.strict,
            "rows": [row.to_json() for row in self.rows],
            "only_a": [asdict(tensor) for tensor in self.only_a],
            "only_b": [asdict(tensor) for tensor in self.only_b],
            "tied": list(self.tied),
            "notes": list(self.notes),
        }
