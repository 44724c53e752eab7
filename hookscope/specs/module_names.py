"""The names of modules as a tree: ``layer1.0.conv1`` is in ``layer1.0``, and all are in ``.``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hookscope.specs.patterns import ROOT


def parent_of(name: str) -> str:
    """Return the module that a module, or a parameter, belongs to.

    >>> parent_of("layer1.0.conv1"), parent_of("fc")
    ('layer1.0', '.')
    """
    return name.rpartition(".")[0] or ROOT


def ancestors(name: str) -> list[str]:
    """Return the names above ``name``, nearest last; the model itself is left out.

    >>> ancestors("layer3.0.conv1")
    ['layer3', 'layer3.0']
    """
    parts = [] if name == ROOT else name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def ancestors_of(modules: Iterable[str]) -> set[str]:
    """Return every module that contains one of ``modules``; the model itself is always among them.

    >>> sorted(ancestors_of(["layer1.0.conv1", "fc"]))
    ['.', 'layer1', 'layer1.0']
    """
    return {ROOT}.union(*map(ancestors, modules))


def begins_with(name: str, prefix: str) -> bool:
    """Whether the first parts of a name are those of ``prefix``, which may be empty."""
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def lies_in(name: str, module: str) -> bool:
    """Whether ``name`` is ``module`` or something in it."""
    return module == ROOT or begins_with(name, module)


def nearest_ancestors(names: Sequence[str]) -> list[int | None]:
    """Return the index of each module's nearest ancestor among the names before it, or None.

    >>> nearest_ancestors([".", "a", "a.0.conv", "b"])
    [None, 0, 1, 0]
    """
    nearest: list[int | None] = []
    above: list[int] = []
    for n, name in enumerate(names):
        while above and not _is_inside(name, names[above[-1]]):
            above.pop()
        nearest.append(above[-1] if above else None)
        above.append(n)
    return nearest


def _is_inside(name: str, ancestor: str) -> bool:
    return ancestor == ROOT or name.startswith(f"{ancestor}.")


def outermost(names: Iterable[str]) -> list[str]:
    """Return the names that lie in none of the others.

    >>> outermost(["a", "a.b", "c"])
    ['a', 'c']
    """
    names = list(names)
    return [n for n in names if not any(n != other and lies_in(n, other) for other in names)]


def topmost(marked: Iterable[str], everything: Iterable[str]) -> dict[str, list[str]]:
    """Group marked names by the largest module of which all names are marked.

    Other names are grouped by their own module.

    >>> topmost(["a.b.w", "a.b.v", "c.w"], ["a.b.w", "a.b.v", "a.z", "c.w", "c.v"])
    {'a.b': ['a.b.w', 'a.b.v'], 'c': ['c.w']}
    """
    marked, free = list(marked), set(everything) - set(marked)
    groups: dict[str, list[str]] = {}
    for name in marked:
        above = (ROOT, *ancestors(name))
        complete = (m for m in above if not any(lies_in(n, m) for n in free))
        groups.setdefault(next(complete, parent_of(name)), []).append(name)
    return groups


def group_by_modules(sets: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    """Count sets of names by the modules in which they have the same relative name.

    >>> group_by_modules([("a.x.weight", "b.x.weight"), ("a.x.bias", "b.x.bias")])
    {('a', 'b'): 2}
    """
    counts: dict[tuple[str, ...], int] = {}
    for names in sets:
        parts = [name.split(".") for name in names]
        while all(len(p) > 1 for p in parts) and len({p[-1] for p in parts}) == 1:
            parts = [p[:-1] for p in parts]
        key = tuple(".".join(p) for p in parts)
        counts[key] = counts.get(key, 0) + 1
    return counts
