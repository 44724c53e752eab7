"""Which tensor of A belongs to which of B: by name, by a map of names, by order and shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from hookscope.errors import RequestError
from hookscope.results.diff.result import BY_MAP, BY_NAME, BY_ORDER
from hookscope.results.module_tree import ROOT
from hookscope.results.records import Record, key_of
from hookscope.specs.suggest import did_you_mean


@dataclass(frozen=True)
class Matching:
    """Pairs in A's order, each with how it was found, and what remains of each side."""

    pairs: tuple[tuple[Record, Record, str], ...]
    only_a: tuple[Record, ...]
    only_b: tuple[Record, ...]

    def side(self, number: int) -> list[Record]:
        """Return the paired records of A (0) or of B (1), in the order of the pairs."""
        return [(a, b)[number] for a, b, _ in self.pairs]


def match(a: Sequence[Record], b: Sequence[Record], prefixes: Mapping[str, str]) -> Matching:
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
    return Matching(pairs, tuple(r for r in a if r.key not in found), tuple(left.values()))


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
