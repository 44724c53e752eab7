"""Which tensor of A belongs to which of B: by name, by a map of names, by order and shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any

from hookscope.errors import LayerError, RequestError
from hookscope.results.diff.diff_result import (
    BY_MAP,
    BY_NAME,
    BY_ORDER,
    Diff,
    TensorComparison,
    UnmatchedTensor,
)
from hookscope.results.module_tree import ROOT
from hookscope.results.records import Record, key_of
from hookscope.specs import patterns
from hookscope.specs.suggestions import did_you_mean


@dataclass(frozen=True)
class RecordMatches:
    """Pairs in A's order, each with how it was found, and what remains of each side."""

    pairs: tuple[tuple[Record, Record, str], ...]
    only_a: tuple[Record, ...]
    only_b: tuple[Record, ...]

    def side(self, number: int) -> list[Record]:
        """Return the paired records of A (0) or of B (1), in the order of the pairs."""
        return [(a, b)[number] for a, b, _ in self.pairs]


def match_records(
    a: Sequence[Record], b: Sequence[Record], prefixes: Mapping[str, str]
) -> RecordMatches:
    """Match the records of two recordings, each in its order of execution.

    First what has the same key; then what has it once a prefix of A's module name is changed; then,
    of what is left between the same two neighbours that are matched already, what follows in the
    same order and has the same module type, kind and shape.

    Args:
        a: A's records.
        b: B's records.
        prefixes: prefixes of names in A and what stands for them in B.

    Raises:
        RequestError: no name in A begins with one of ``prefixes``.
    """
    _demand_use(prefixes, a)
    left = {record.key: record for record in b}
    found: dict[str, tuple[Record, str]] = {}
    for record in a:
        if record.key in left:
            found[record.key] = left.pop(record.key), BY_NAME
    for record in a:
        other = key_of(_mapped(record.module, prefixes), record.call, record.what)
        if record.key not in found and other in left:
            found[record.key] = left.pop(other), BY_MAP
    for one, two in _in_order(a, b, {key: other.key for key, (other, _) in found.items()}):
        found[one.key] = left.pop(two.key), BY_ORDER
    pairs = tuple((record, *found[record.key]) for record in a if record.key in found)
    return RecordMatches(pairs, tuple(r for r in a if r.key not in found), tuple(left.values()))


def _demand_use(prefixes: Mapping[str, str], a: Sequence[Record]) -> None:
    names = list(dict.fromkeys(record.module for record in a))
    for old in prefixes:
        if not any(_begins(name, old) for name in names):
            raise RequestError(
                f"No layer of A begins with {old!r}.",
                did_you_mean(old, names) or "--map wants OLD=NEW, OLD in A and NEW in B.",
            )


def _begins(name: str, old: str) -> bool:
    return not old or name == old or name.startswith(f"{old}.")


def _mapped(module: str, prefixes: Mapping[str, str]) -> str:
    """The name with the longest prefix that it has changed; the model itself is an empty name."""
    fitting = [old for old in prefixes if _begins(module, old)]
    if not fitting:
        return module
    old = max(fitting, key=len)
    rest = ("" if module == ROOT else module)[len(old) :].strip(".")
    return ".".join(part for part in (prefixes[old], rest) if part) or ROOT


def _in_order(
    a: Sequence[Record], b: Sequence[Record], found: Mapping[str, str]
) -> list[tuple[Record, Record]]:
    """Pairs of what is left, found between neighbours that are matched already."""
    gaps_a = _gaps(a, found)
    gaps_b = _gaps(b, {other: other for other in found.values()})
    pairs: list[tuple[Record, Record]] = []
    for place, lone_b in gaps_b.items():
        lone_a = gaps_a[place]
        looks_a, looks_b = ([_look(record) for record in lone] for lone in (lone_a, lone_b))
        found_blocks = SequenceMatcher(None, looks_a, looks_b, autojunk=False).get_matching_blocks()
        for block in found_blocks:
            pairs += zip(
                lone_a[block.a : block.a + block.size],
                lone_b[block.b : block.b + block.size],
                strict=True,
            )
    return pairs


def _gaps(records: Sequence[Record], found: Mapping[str, str]) -> dict[str, list[Record]]:
    """What is left, by the key in B of the last matched one before it."""
    gaps: dict[str, list[Record]] = defaultdict(list)
    before = ""
    for record in records:
        if record.key in found:
            before = found[record.key]
        else:
            gaps[before].append(record)
    return gaps


def _look(record: Record) -> tuple[str, str, str, tuple[int, ...]]:
    return record.type, record.kind, record.what, record.shape


Test = Callable[[Record], bool]


@dataclass(frozen=True)
class LayerFilter:
    """Layers by their names and types, as ``hookscope.hooks.selection`` has them for a model."""

    layers: tuple[str, ...]
    types: tuple[str, ...]
    depth: int | None

    def __call__(self, record: Record) -> bool:
        """Whether the record is of a chosen layer."""
        adding, taking = patterns.split_exclusions(self.layers)
        names = _names(record)
        return (
            (not adding or _any(adding, names))
            and not _any(taking, names)
            and (not self.types or any(fnmatchcase(record.type, kind) for kind in self.types))
            and (self.depth is None or _depth(record.module) <= self.depth)
        )

    def check_layers(self, records: Iterable[Record]) -> None:
        """Demand that each pattern matches something.

        Raises:
            LayerError: one does not.
        """
        every = list(records)
        for pattern in (p for signs in patterns.split_exclusions(self.layers) for p in signs):
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


def select_matches(matching: RecordMatches, of_a: Test, of_b: Test) -> RecordMatches:
    """Keep the pairs whose layer in A is chosen, and of what has no partner what is chosen.

    Raises:
        RequestError: no pair is left.
    """
    found = RecordMatches(
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


def build_diff(
    matching: RecordMatches,
    pairs: Iterable[TensorComparison],
    *,
    strict: bool,
    equal_nan: bool,
    a: dict[str, Any],
    b: dict[str, Any],
) -> Diff:
    """Put the comparison together."""
    only_a, only_b = (
        tuple(UnmatchedTensor(r.key, r.type, r.shape, r.dtype) for r in side)
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
