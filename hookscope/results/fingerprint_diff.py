"""How what a model computes differs from its fingerprint, or two fingerprints, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from hookscope.results.diff_result import DIFFERS, EQUAL
from hookscope.results.fingerprint import ModelFingerprint
from hookscope.results.result import Result
from hookscope.specs.patterns import ROOT

ROUNDING = "rounding"
# In units of the rounding. Other threads, kernels, memory formats and releases of torch stay below.
LIMIT = 10.0
# What sentences call A and B.
TWO_FILES, FILE_AND_MODEL = ("A", "B"), ("the file", "the model")
_ABOUT = ("device", "dtype", "training", "environment", "versions")


@dataclass(frozen=True)
class EntryChange:
    """How one tensor differs.

    Attributes:
        key: its name in A and B.
        module: the module that it goes into or comes out of.
        type: class name of the module in A.
        what: what it is of the call: ``output``, ``input.0``.
        shape: in A.
        error: relative distance ``|a - b| / |a|``, from the projections; infinite where entries
            that are not finite, or shapes, differ.
        rounding: relative distance that rounding explains; the larger of A's and B's.
        verdict: ``equal``, ``rounding`` or ``differs``.
        note: what else differs.
    """

    key: str
    module: str
    type: str
    what: str
    shape: tuple[int, ...]
    error: float
    rounding: float
    verdict: str
    note: str = ""

    @property
    def times(self) -> float:
        """The error in units of the rounding."""
        if not self.error:
            return 0.0
        return self.error / self.rounding if self.rounding else inf

    @property
    def is_input(self) -> bool:
        """Whether the tensor goes into the module."""
        return self.what.startswith("input")

    @property
    def is_model_input(self) -> bool:
        """Whether it is an input of the model itself."""
        return self.is_input and self.module == ROOT

    @property
    def origin(self) -> str:
        """The module whose own code computes the tensor, if it is not an input of the model."""
        if not self.is_input:
            return self.module
        return self.module.rpartition(".")[0] or ROOT

    def to_json(self) -> dict[str, Any]:
        """Return the change as a plain dict."""
        return {**asdict(self), "times": self.times, "origin": self.origin}


@dataclass(frozen=True)
class FingerprintDiff(Result):
    """The tensors of two fingerprints, compared.

    Attributes:
        a: the fingerprint that is the reference.
        b: the other one.
        rows: of the tensors that both have, in A's order of execution. An input that is the output
            of another module in both is left out.
        only_a: keys of the tensors that only A has.
        only_b: keys of the tensors that only B has.
        strict: whether a tensor of one side alone is a difference.
        sides: what sentences call A and B.
    """

    view = "fingerprint_diff"

    a: ModelFingerprint
    b: ModelFingerprint
    rows: tuple[EntryChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    strict: bool = False
    sides: tuple[str, str] = TWO_FILES

    def __repr__(self) -> str:
        found = "the same" if self.first is None else f"{self.first.key} is the first that differs"
        return f"<FingerprintDiff of {len(self.rows)} tensors: {found}>"

    @property
    def changed(self) -> tuple[EntryChange, ...]:
        """The rows beyond their rounding."""
        return tuple(row for row in self.rows if row.verdict == DIFFERS)

    @property
    def first(self) -> EntryChange | None:
        """The first row beyond its rounding; None if there is none."""
        return next(iter(self.changed), None)

    @property
    def largest(self) -> EntryChange | None:
        """The row with the largest error in units of its rounding."""
        return max(self.rows, key=lambda row: row.times, default=None)

    @property
    def equal(self) -> int:
        """The number of rows without a difference."""
        return sum(row.verdict == EQUAL for row in self.rows)

    @property
    def same(self) -> bool:
        """Whether no tensor is beyond its rounding; with ``strict``, and none is unmatched."""
        return self.first is None and not (self.strict and (self.only_a or self.only_b))

    @property
    def circumstances(self) -> tuple[tuple[str, str, str], ...]:
        """What differs of the machines and versions: the name, and the values of A and B."""
        both = [dict(_flat(side.metadata)) for side in (self.a, self.b)]
        names = dict.fromkeys([*both[0], *both[1]])
        values = ((name, *(str(side.get(name, "-")) for side in both)) for name in names)
        return tuple((name, a, b) for name, a, b in values if a != b)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a plain dict."""
        return {
            "a": self.a.metadata,
            "b": self.b.metadata,
            "same": self.same,
            "first": None if self.first is None else self.first.key,
            "limit": LIMIT,
            "rows": [row.to_json() for row in self.rows],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }


def _flat(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _ABOUT:
        value = metadata.get(name)
        if isinstance(value, Mapping):
            yield from value.items()
        elif value is not None:
            yield name, value
