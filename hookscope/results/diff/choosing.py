"""Which rows of a comparison are shown, and the comparison as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from hookscope.errors import LayerError, RequestError
from hookscope.results.diff.matching import Matching
from hookscope.results.diff.result import Diff, Lone, Pair
from hookscope.results.module_tree import ROOT
from hookscope.results.records import Record
from hookscope.specs import patterns
from hookscope.specs.suggest import did_you_mean

Test = Callable[[Record], bool]


@dataclass(frozen=True)
class Choice:
    """Layers by their names and types, as ``hookscope.hooks.selection`` has them for a model."""

    layers: tuple[str, ...]
    types: tuple[str, ...]
    depth: int | None

    def __call__(self, record: Record) -> bool:
        """Whether the record is of a chosen layer."""
        adding, taking = patterns.split_signs(self.layers)
        names = _names(record)
        return (
            (not adding or _any(adding, names))
            and not _any(taking, names)
            and (not self.types or any(fnmatchcase(record.type, kind) for kind in self.types))
            and (self.depth is None or _depth(record.module) <= self.depth)
        )

    def demand_layers(self, records: Iterable[Record]) -> None:
        """Demand that each pattern matches something.

        Raises:
            LayerError: one does not.
        """
        every = list(records)
        for pattern in (p for signs in patterns.split_signs(self.layers) for p in signs):
            if not any(_any([pattern], _names(record)) for record in every):
                names = {name for record in every for name in _names(record)}
                raise LayerError(
                    f"No layer of A or B matches {pattern!r}.",
                    did_you_mean(pattern, sorted(names)) or "'hookscope show FILE' lists them.",
                )
        for kind in self.types:
            if not any(fnmatchcase(record.type, kind) for record in every):
                present = sorted({record.type for record in every})
                raise LayerError(
                    f"No layer of A or B is of type {kind!r}.",
                    did_you_mean(kind, present) or f"There are {', '.join(present)}.",
                )


def narrowed(matching: Matching, of_a: Test, of_b: Test) -> Matching:
    """Keep the pairs whose layer in A is chosen, and of what has no partner what is chosen.

    Raises:
        RequestError: no pair is left.
    """
    found = Matching(
        tuple(pair for pair in matching.pairs if of_a(pair[0])),
        tuple(filter(of_a, matching.only_a)),
        tuple(filter(of_b, matching.only_b)),
    )
    if not found.pairs:
        looked = f"{len(found.only_a)} tensors of A and {len(found.only_b)} of B"
        raise RequestError(
            f"Nothing of A has a partner in B, among {looked}.",
            "Tell what a layer of A is called in B: --map OLD=NEW.",
        )
    return found


def concluded(
    matching: Matching,
    pairs: Iterable[Pair],
    *,
    strict: bool,
    equal_nan: bool,
    a: dict[str, Any],
    b: dict[str, Any],
) -> Diff:
    """Put the comparison together."""
    only_a, only_b = (
        tuple(Lone(r.key, r.type, r.shape, r.dtype) for r in side)
        for side in (matching.only_a, matching.only_b)
    )
    return Diff(tuple(pairs), only_a, only_b, strict, equal_nan, a, b)


def _names(record: Record) -> tuple[str, ...]:
    if record.kind.startswith("param"):  # its aliases are those of the parameter
        return (record.module,)
    return (record.module, *record.aliases)


def _any(words: Iterable[str], names: Iterable[str]) -> bool:
    return any(patterns.compile_pattern(word)(name) for word in words for name in names)


def _depth(name: str) -> int:
    return 0 if name == ROOT else name.count(".") + 1
