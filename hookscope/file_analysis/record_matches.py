"""Pairs of tensors of A and B, matched by name, by a map of names, or by order and shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any

from hookscope.errors import LayerError, RequestError
from hookscope.file_analysis.value_matches import Fingerprints, match_by_value
from hookscope.files.suggestions import did_you_mean
from hookscope.results import diff_result
from hookscope.results.records import Record, key_of
from hookscope.specs import patterns
from hookscope.specs.module_names import begins_with
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import OUTPUT

RecordTest = Callable[[Record], bool]


@dataclass(frozen=True)
class RecordMatches:
    """Pairs in A's order, each with how it was matched, and the unmatched records of each side."""

    pairs: tuple[tuple[Record, Record, str], ...]
    only_a: tuple[Record, ...]
    only_b: tuple[Record, ...]

    def side(self, number: int) -> list[Record]:
        """Return the paired records of A (0) or of B (1), in the order of the pairs."""
        return [(a, b)[number] for a, b, _ in self.pairs]


@dataclass(frozen=True)
class ExportRules:
    """How the records of a model and those of an ONNX file of it differ."""

    folded: Mapping[str, str]
    absent: tuple[Mapping[str, str], Mapping[str, str]]
    prints: Fingerprints


def match_records(
    a: Sequence[Record],
    b: Sequence[Record],
    prefixes: Mapping[str, str],
    rules: ExportRules | None = None,
) -> RecordMatches:
    """Match the records of two recordings, each in its order of execution.

    Records are matched by the same key, then by the same key after a prefix of A's module name is
    replaced. Then unmatched records between the same two matched neighbours are matched if they
    follow in the same order with the same module type, kind and shape.
    """
    check_prefixes(prefixes, *([record.module for record in side] for side in (a, b)))
    unmatched = {record.key: record for record in b}
    matches_of_a: dict[str, tuple[Record, str]] = {}
    for record in a:
        if rules is not None and record.module in rules.folded:
            other = key_of(rules.folded[record.module], record.call, record.what)
            if other in unmatched:
                matches_of_a[record.key] = unmatched.pop(other), diff_result.BY_FOLD
    without = set() if rules is None else {*rules.absent[0], *rules.absent[1]}
    left = [r for r in a if r.module not in without and r.key not in matches_of_a]
    spare: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    if rules is not None:
        others = [r for r in unmatched.values() if r.module not in without]
        found, spare = _match_exported(left, others, prefixes, rules)
        for record, partner, by in found:
            matches_of_a[record.key] = unmatched.pop(partner.key), by
        unmatched = {key: r for key, r in unmatched.items() if key not in spare[1]}
    left = [r for r in left if r.key not in spare[0] and r.key not in matches_of_a]
    for record in left:
        if record.key in unmatched:
            matches_of_a[record.key] = unmatched.pop(record.key), diff_result.BY_NAME
    for record in left:
        renamed = _renamed_key(record, prefixes)
        if record.key not in matches_of_a and renamed in unmatched:
            matches_of_a[record.key] = unmatched.pop(renamed), diff_result.BY_MAP
    if rules is not None:
        for record_a, record_b in _match_within_calls(left, unmatched.values(), matches_of_a):
            matches_of_a[record_a.key] = unmatched.pop(record_b.key), diff_result.BY_ORDER
    matched = {key: record.key for key, (record, _) in matches_of_a.items()}
    left = [r for r in a if r.key in matched or (r.module not in without and r.key not in spare[0])]
    left_b = [record for record in b if record.key not in spare[1]]
    for record_a, record_b in _match_by_order(left, left_b, matched):
        matches_of_a[record_a.key] = unmatched.pop(record_b.key), diff_result.BY_ORDER
    pairs = tuple((record, *matches_of_a[record.key]) for record in a if record.key in matches_of_a)
    only_a = tuple(record for record in a if record.key not in matches_of_a)
    partners = {record.key for _, record, _ in pairs}
    return RecordMatches(pairs, only_a, tuple(r for r in b if r.key not in partners))


def _match_exported(
    a: Sequence[Record], b: Sequence[Record], prefixes: Mapping[str, str], rules: ExportRules
) -> tuple[list[tuple[Record, Record, str]], tuple[frozenset[str], frozenset[str]]]:
    """Pairs of a model and an ONNX file that names do not tell, and keys that have no partner."""
    values = match_by_value(a, b, rules.prints, lambda name: replace_prefix(name, prefixes))
    found = []
    for record, other in values.pairs:
        same = diff_result.BY_NAME if record.key == other.key else diff_result.BY_MAP
        is_same = other.key in (record.key, _renamed_key(record, prefixes))
        found.append((record, other, same if is_same else diff_result.BY_VALUE))
    outputs = [[r for r in side if r.module == ROOT and r.kind == OUTPUT] for side in (a, b)]
    names = [{record.what for record in side} for side in outputs]
    if names[0] != names[1] and len(outputs[0]) == len(outputs[1]):
        found += [(own, other, diff_result.BY_ORDER) for own, other in zip(*outputs, strict=True)]
    return found, values.left


def _renamed_key(record: Record, prefixes: Mapping[str, str]) -> str:
    return key_of(replace_prefix(record.module, prefixes), record.call, record.what)


def check_prefixes(
    prefixes: Mapping[str, str], of_a: Iterable[str], of_b: Iterable[str] | None = None
) -> None:
    """Raise RequestError for an old prefix that no name in A has, or a new one that none in B has.

    If the names in B are not those of modules, ``of_b`` is None, and new prefixes are not checked.
    """
    _check_side(prefixes, "A", of_a)
    if of_b is not None:
        _check_side(prefixes.values(), "B", of_b)


def _check_side(prefixes: Iterable[str], side: str, of_side: Iterable[str]) -> None:
    names = list(dict.fromkeys(of_side))
    for prefix in prefixes:
        if not any(begins_with(name, prefix) for name in names):
            hint = "Write --map OLD=NEW, with OLD from A and NEW from B."
            raise RequestError(
                f"{side} has no layer to compare whose name begins with {prefix!r}.",
                did_you_mean(prefix, names) or hint,
            )


def replace_prefix(module: str, prefixes: Mapping[str, str]) -> str:
    """Return a name with its longest prefix replaced; the model itself is an empty name."""
    matching = [old for old in prefixes if begins_with(module, old)]
    if not matching:
        return module
    old = max(matching, key=len)
    rest = ("" if module == ROOT else module)[len(old) :].strip(".")
    return ".".join(part for part in (prefixes[old], rest) if part) or ROOT


def _match_within_calls(
    a: Iterable[Record], unmatched: Iterable[Record], matched: Mapping[str, Any]
) -> list[tuple[Record, Record]]:
    """Pairs of unmatched records of the same call, of the same kind and shape."""
    parts: dict[Any, list[Record]] = defaultdict(list)
    for record in unmatched:
        parts[record.module, record.call, record.kind, record.shape].append(record)
    pairs = []
    for record in a:
        others = parts[record.module, record.call, record.kind, record.shape]
        if record.key not in matched and others:
            pairs.append((record, others.pop(0)))
    return pairs


def _match_by_order(
    a: Sequence[Record], b: Sequence[Record], matched: Mapping[str, str]
) -> list[tuple[Record, Record]]:
    """Pairs of unmatched records between the same matched neighbours."""
    gaps_a = _gaps(a, matched)
    gaps_b = _gaps(b, {key: key for key in matched.values()})
    pairs: list[tuple[Record, Record]] = []
    for neighbour, gap_b in gaps_b.items():
        gap_a = gaps_a[neighbour]
        features_a, features_b = ([_features(r) for r in gap] for gap in (gap_a, gap_b))
        matcher = SequenceMatcher(None, features_a, features_b, autojunk=False)
        for block in matcher.get_matching_blocks():
            pairs += zip(
                gap_a[block.a : block.a + block.size],
                gap_b[block.b : block.b + block.size],
                strict=True,
            )
    return pairs


def _gaps(records: Sequence[Record], matched: Mapping[str, str]) -> dict[str, list[Record]]:
    """Unmatched records, by the key in B of the last matched record before them."""
    gaps: dict[str, list[Record]] = defaultdict(list)
    before = ""
    for record in records:
        if record.key in matched:
            before = matched[record.key]
        else:
            gaps[before].append(record)
    return gaps


def _features(record: Record) -> tuple[str, str, str, tuple[int, ...]]:
    return record.type, record.kind, record.what, record.shape


@dataclass(frozen=True)
class LayerFilter:
    """Selects records by layer name and type, as ``hookscope.hooks.layers`` selects modules."""

    layers: tuple[str, ...]
    types: tuple[str, ...]
    depth: int | None

    def __call__(self, record: Record) -> bool:
        """Whether the record belongs to a selected layer."""
        included, excluded = patterns.split_exclusions(self.layers)
        names = _names(record)
        return (
            (not included or _any_matches(included, names))
            and not _any_matches(excluded, names)
            and (not self.types or any(fnmatchcase(record.type, kind) for kind in self.types))
            and (self.depth is None or _depth(record.module) <= self.depth)
        )

    def check_layers(self, records: Iterable[Record]) -> None:
        """Check that each pattern and each type matches a record."""
        records = list(records)
        included, excluded = patterns.split_exclusions(self.layers)
        for pattern in (*included, *excluded):
            if not any(_any_matches([pattern], _names(record)) for record in records):
                names = {name for record in records for name in _names(record)}
                raise LayerError(
                    f"No layer of A or B matches {pattern!r}.",
                    did_you_mean(pattern, sorted(names)) or "'hookscope show FILE' lists them.",
                )
        for type in self.types:
            if not any(fnmatchcase(record.type, type) for record in records):
                present = sorted({record.type for record in records})
                raise LayerError(
                    f"No layer of A or B is of type {type!r}.",
                    did_you_mean(type, present) or f"There are {', '.join(present)}.",
                )


def select_matches(
    matches: RecordMatches, selects_a: RecordTest, selects_b: RecordTest
) -> RecordMatches:
    """Keep the pairs whose record in A is selected, and the selected unmatched records."""
    selected = RecordMatches(
        tuple(pair for pair in matches.pairs if selects_a(pair[0])),
        tuple(filter(selects_a, matches.only_a)),
        tuple(filter(selects_b, matches.only_b)),
    )
    if not selected.pairs:
        raise RequestError(
            f"None of the {len(selected.only_a)} tensors of A matches any of the"
            f" {len(selected.only_b)} tensors of B.",
            "Map layer names of A to those of B: --map OLD=NEW.",
        )
    return selected


def build_diff(
    matches: RecordMatches,
    rows: Iterable[diff_result.TensorComparison],
    *,
    strict: bool,
    equal_nan: bool,
    a: dict[str, Any],
    b: dict[str, Any],
    rules: ExportRules | None = None,
) -> diff_result.Diff:
    """Return the result of comparing the pairs of ``matches``."""
    absent: Sequence[Mapping[str, str]] = rules.absent if rules is not None else ({}, {})
    only_a, only_b = (
        tuple(
            diff_result.UnmatchedTensor(r.key, r.type, r.shape, r.dtype, reasons.get(r.module, ""))
            for r in side
        )
        for side, reasons in zip((matches.only_a, matches.only_b), absent, strict=True)
    )
    return diff_result.Diff(tuple(rows), only_a, only_b, strict, equal_nan, a, b)


def _names(record: Record) -> tuple[str, ...]:
    if record.kind.startswith("param"):  # its aliases are names of the parameter
        return (record.module,)
    return (record.module, *record.aliases)


def _any_matches(globs: Iterable[str], names: Sequence[str]) -> bool:
    return any(patterns.compile_pattern(glob)(name) for glob in globs for name in names)


def _depth(name: str) -> int:
    return 0 if name == ROOT else name.count(".") + 1
