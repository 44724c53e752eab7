"""Pairs of tensors of two sets of weights, by name, and what has no partner. No values are read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from hookscope.errors import LayerError, RequestError
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import join_first, plural
from hookscope.specs import patterns
from hookscope.stores.weights.weight_names import has_prefix, model_family, resolve_names
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor

Pair = tuple[WeightTensor, WeightTensor]
Renames = Mapping[str, str] | Sequence[Mapping[str, str]] | None

_MOST_NAMES = 20_000  # names that are searched for a prefix to suggest
_FEW = 8  # names with the same ending; more of them say nothing about prefixes


class NoCommonName(RequestError):
    """Two sets have no name in common; ``renaming`` is a prefix of A and that in its place in B."""

    renaming: tuple[str, str] | None = None


@dataclass(frozen=True)
class TensorPairs:
    """The tensors of A and B with the same name, and the others."""

    pairs: tuple[Pair, ...]
    only_a: tuple[WeightTensor, ...]
    only_b: tuple[WeightTensor, ...]
    tied: tuple[str, ...]
    notes: tuple[str, ...]
    names: tuple[Mapping[str, Sequence[str]], Mapping[str, Sequence[str]]]


def match_tensors(a: WeightSet, b: WeightSet, rename: Renames) -> TensorPairs:
    """Match the tensors of two sets by name.

    Prefixes of wrappers are removed if only one side has them. A tied tensor that one side does not
    have is not a difference if a tensor that shares its values has a partner.
    """
    of_a, of_b = _split_renames(rename, a, b)
    resolved_a = resolve_names(a, set(b), of_a, a.label)
    resolved_b = resolve_names(b, set(a), of_b, b.label)
    names_a = resolved_a.names
    partners = {name: b.tensors[own] for own, name in resolved_b.names.items()}
    matched: list[Pair] = []
    only_a: list[WeightTensor] = []
    for own, name in names_a.items():
        partner = partners.pop(name, None)
        if partner is None:
            only_a.append(a.tensors[own])
        else:
            matched.append((a.tensors[own], partner))
    if not matched:
        raise _no_match(a, b)
    notes = [
        f"The prefix {' and '.join(one.stripped)} of names in {side} is ignored."
        for one, side in ((resolved_a, "A"), (resolved_b, "B"))
        if one.stripped
    ]
    notes += [
        f"{plural(one.renamed, 'name')} in {side} {'is' if one.renamed == 1 else 'are'} renamed."
        for one, side in ((resolved_a, "A"), (resolved_b, "B"))
        if one.renamed
    ]
    if renaming := suggest_renaming(
        {names_a[tensor.name]: tensor for tensor in only_a}, partners, len(matched)
    ):
        notes.append(f"More names match with --rename {'='.join(renaming)}.")
    names = _storage_names(a), _storage_names(b)
    return _without_tied(matched, only_a, list(partners.values()), tuple(notes), names)


def _without_tied(
    matched: Sequence[Pair],
    only_a: Sequence[WeightTensor],
    only_b: Sequence[WeightTensor],
    notes: tuple[str, ...],
    names: tuple[Mapping[str, Sequence[str]], Mapping[str, Sequence[str]]],
) -> TensorPairs:
    """Leave out tensors that share the values of one that is compared."""
    pairs: dict[tuple[str, str], Pair] = {}
    tied = []
    for pair in matched:
        owners = _owner(pair[0]), _owner(pair[1])
        if owners in pairs:
            tied.append(pair[0].name)
        else:
            pairs[owners] = pair
    compared: tuple[set[str], set[str]] = ({one[0] for one in pairs}, {one[1] for one in pairs})
    alone: list[tuple[WeightTensor, ...]] = []
    for tensors, owners_there in zip((only_a, only_b), compared, strict=True):
        tied += [tensor.name for tensor in tensors if _owner(tensor) in owners_there]
        alone.append(tuple(tensor for tensor in tensors if _owner(tensor) not in owners_there))
    return TensorPairs(tuple(pairs.values()), alone[0], alone[1], tuple(tied), notes, names)


def _storage_names(weights: WeightSet) -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for tensor in weights.tensors.values():
        names[_owner(tensor)].append(tensor.name)
    return names


def _owner(tensor: WeightTensor) -> str:
    return tensor.tied_to or tensor.name


def _split_renames(
    rename: Renames, a: WeightSet, b: WeightSet
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The prefixes to replace in names of A, and those in names of B."""
    if rename is None or isinstance(rename, Mapping):
        for_a, for_b = rename or {}, rename or {}
        in_b = {old for old in for_a if not has_prefix(a, old) and has_prefix(b, old)}
        in_a = for_a.keys() - in_b
    else:  # a prefix that is given once is in both mappings
        for_a, for_b = rename
        in_a = {old for old in for_a if old not in for_b or has_prefix(a, old)}
        in_b = {old for old in for_b if old not in for_a or has_prefix(b, old)}
        in_a |= for_a.keys() - in_a - in_b  # no name begins with it, which is an error
    return (
        [(old, new) for old, new in for_a.items() if old in in_a],
        [(old, new) for old, new in for_b.items() if old in in_b],
    )


def suggest_renaming(
    a: Mapping[str, WeightTensor], b: Mapping[str, WeightTensor], matched: int = 0
) -> tuple[str, str] | None:
    """Return the prefixes OLD and NEW with which most of the tensors match; None if few do."""
    endings: dict[str, list[str]] = defaultdict(list)
    for name in islice(b, _MOST_NAMES):
        for start in _starts(name):
            endings[name[start:]].append(name)
    votes: Counter[tuple[str, str]] = Counter()
    for name in islice(a, _MOST_NAMES):
        starts = [start for start in _starts(name) if name[start:] in endings]
        others = endings[name[starts[0] :]] if starts else []
        for other in others if len(others) <= _FEW else ():
            if a[name].shape == b[other].shape:
                old, new = name[: starts[0]], other[: len(other) - len(name) + starts[0]]
                votes[old.rstrip("."), new.rstrip(".")] += 1
    if not votes:
        return None
    (old, new), count = votes.most_common(1)[0]
    enough = 2 * count >= min(len(a), len(b)) and count >= max(matched, 2)
    return (old, new) if enough else None


def _starts(name: str) -> list[int]:
    """Where the parts of a name begin."""
    return [0, *(n + 1 for n, character in enumerate(name) if character == ".")]


def match_or_rename(
    a: WeightSet, b: WeightSet, rename: Renames, file: str = ""
) -> tuple[TensorPairs, str]:
    """Match the tensors of two sets; if no name is in both, without the prefix of one of them.

    Returns the ``--rename OLD=NEW`` that was used then, else an empty text. If one side is a model,
    ``file`` is the other, A or B, in which ``--rename`` replaces prefixes.
    """
    try:
        return match_tensors(a, b, rename), ""
    except NoCommonName as error:
        if error.renaming is None or rename:
            raise
        old, new = error.renaming
    if file == "B" or not (file or old):
        return match_tensors(a, b, ({}, {new: old})), f"--rename {new}={old}"
    return match_tensors(a, b, ({old: new}, {})), f"--rename {old}={new}"


def _no_match(a: WeightSet, b: WeightSet) -> NoCommonName:
    """The error for two sets without a common name."""
    texts = []
    for side, weights in (("A", a), ("B", b)):
        family = model_family(weights)
        names = join_first(weights, 2) or "no tensors"
        texts.append(f"{side} contains {names}" + (f", as {family} does" if family else ""))
    hint = "If both belong to one model, replace the prefix of names: --rename OLD=NEW."
    renaming = suggest_renaming(a.tensors, b.tensors)
    if renaming:
        hint = f"Most names match with --rename {'='.join(renaming)}."
    adapters = [side for side, weights in (("A", a), ("B", b)) if _are_adapters(weights)]
    if len(adapters) == 1:
        hint = f"{adapters[0]} contains LoRA adapters, which are added to the weights of a model:"
        hint += " compare them with other adapters, or merge them into the model first."
        renaming = None
    error = NoCommonName(
        f"No tensor of {a.label} has the name of one in {b.label}: {'; '.join(texts)}.", hint
    )
    error.renaming = renaming
    return error


def _are_adapters(names: Collection[str]) -> bool:
    return bool(names) and all(".lora_" in name for name in names)


def select_pairs(pairs: TensorPairs, layers: Iterable[str]) -> TensorPairs:
    """Keep the tensors of which a name, or that of a module that contains it, is selected."""
    included, excluded = patterns.split_exclusions(layers)
    alone = [tensor.name for tensor in (*pairs.only_a, *pairs.only_b)]
    of_pairs = [name for pair in pairs.pairs for group in _names_of(pairs, pair) for name in group]
    names = {name: _with_modules(name) for name in (*of_pairs, *alone)}

    def matching(group: Iterable[str]) -> set[str]:
        matches: set[str] = set()
        for pattern in group:
            test = patterns.compile_pattern(pattern)
            found = {name for name, own in names.items() if any(map(test, own))}
            if not found:
                raise LayerError(
                    f"No tensor of A or B matches {pattern!r}.",
                    did_you_mean(pattern, names) or f"The names are: {join_first(names)}.",
                )
            matches |= found
        return matches

    wanted = matching(included) if included else names.keys()
    unwanted = matching(excluded)

    def is_chosen(*sides: Sequence[str]) -> bool:
        """Whether one name is selected, and on no side all are excluded."""
        return any(name in wanted for own in sides for name in own) and not any(
            unwanted.issuperset(own) for own in sides
        )

    return replace(
        pairs,
        pairs=tuple(pair for pair in pairs.pairs if is_chosen(*_names_of(pairs, pair))),
        only_a=tuple(one for one in pairs.only_a if is_chosen([one.name])),
        only_b=tuple(one for one in pairs.only_b if is_chosen([one.name])),
    )


def _names_of(pairs: TensorPairs, pair: Pair) -> tuple[Sequence[str], Sequence[str]]:
    """The names in A and in B of the storage of a pair."""
    (names_a, names_b), (a, b) = pairs.names, pair
    return names_a[_owner(a)], names_b[_owner(b)]


def _with_modules(name: str) -> tuple[str, ...]:
    """The name of a tensor and of the modules that contain it."""
    return name, *(name[: start - 1] for start in _starts(name)[1:])
