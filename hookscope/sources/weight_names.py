"""What the tensors in a file of weights are called in the model: prefixes taken off and replaced."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from hookscope.errors import WeightsFileError
from hookscope.suggest import did_you_mean

_WRAPPERS = re.compile(
    r"(?:(?<=\.)|^)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)

Names = dict[str, str]  # from the name in the file to that in the model


def settle_names(
    stored: Iterable[str], own: Collection[str], rename: Iterable[tuple[str, str]], path: str
) -> tuple[Names, tuple[str, ...]]:
    """Return what each name in the file is called in the model, and the wrappers' prefixes found.

    A prefix to be replaced is one of names as they stand in the file or, if none there begins with
    it, as they are without the prefixes of wrappers.

    Args:
        stored: the names in the file.
        own: the names of the model's tensors.
        rename: prefixes and what stands for each; whole parts of names count, and for each name
            the longest that it begins with.
        path: the file, for the errors' sentences.

    Raises:
        WeightsFileError: no name has a prefix that is to be replaced, or two names become one.
    """
    names = {name: name for name in stored}
    pairs = dict(rename)
    as_stored = {old for old in pairs if old and any(_begins(name, old) for name in names)}
    names = _renamed(names, {old: pairs[old] for old in as_stored})
    names, stripped = _unwrapped(names, own)
    for old in pairs.keys() - as_stored:
        _demand_prefix(names, old, path)
    names = _renamed(names, {old: new for old, new in pairs.items() if old not in as_stored})
    first: Names = {}
    for name, new in names.items():
        if first.setdefault(new, name) != name:
            raise WeightsFileError(
                f"{first[new]!r} and {name!r} in {path!r} would both be {new!r} in the model.",
                "Give each prefix a name of its own: --rename OLD=NEW.",
            )
    return names, stripped


def some(names: Iterable[str], count: int = 3) -> str:
    """The first few of many names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def _begins(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def _renamed(names: Names, pairs: Names) -> Names:
    longest_first = sorted(pairs, key=len, reverse=True)

    def change(name: str) -> str:
        old = next((prefix for prefix in longest_first if _begins(name, prefix)), None)
        if old is None:
            return name
        rest = name.removeprefix(old).removeprefix(".")
        return ".".join(part for part in (pairs[old], rest) if part)

    return {stored: change(name) for stored, name in names.items()}


def _demand_prefix(names: Names, old: str, path: str) -> None:
    if any(_begins(name, old) for name in names):
        return
    raise WeightsFileError(
        f"No name in {path!r} begins with {old!r}: it holds {some(names)}.",
        did_you_mean(old, {name.partition(".")[0] for name in names.values()})
        or "Whole parts of names count, as in --rename backbone=features.",
    )


def _unwrapped(names: Names, known: Collection[str]) -> tuple[Names, tuple[str, ...]]:
    """The names without the prefixes of wrappers, and which those were."""
    own = set(known)
    stripped: dict[str, None] = {}
    plain = dict(names)
    for stored, name in names.items():
        if name not in own:
            stripped.update(dict.fromkeys(f"{found}." for found in _WRAPPERS.findall(name)))
            plain[stored] = _WRAPPERS.sub("", name)
    # A data-parallel wrapper stands before every name; a model may have a module of that name too.
    while all(name.startswith("module.") for name in plain.values()) and own.isdisjoint(
        plain.values()
    ):
        stripped["module."] = None
        plain = {stored: name.removeprefix("module.") for stored, name in plain.items()}
    return plain, tuple(stripped)
