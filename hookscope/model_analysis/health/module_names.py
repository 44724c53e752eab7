"""Names of parameters grouped by modules, for few findings in place of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hookscope.specs.patterns import ROOT


def owner_of(name: str) -> str:
    """Return the module that a parameter, or a module, belongs to.

    >>> owner_of("layer1.conv.weight"), owner_of("scale")
    ('layer1.conv', '.')
    """
    return name.rpartition(".")[0] or ROOT


def lies_in(name: str, module: str) -> bool:
    """Whether ``name`` is ``module`` or something in it."""
    return module == ROOT or name == module or name.startswith(f"{module}.")


def topmost(marked: Iterable[str], everything: Iterable[str]) -> dict[str, list[str]]:
    """Group marked names by the largest module of which all names are marked.

    Other names are grouped by their own module.

    >>> topmost(["a.b.w", "a.b.v", "c.w"], ["a.b.w", "a.b.v", "a.z", "c.w", "c.v"])
    {'a.b': ['a.b.w', 'a.b.v'], 'c': ['c.w']}
    """
    marked, free = list(marked), set(everything) - set(marked)
    groups: dict[str, list[str]] = {}
    for name in marked:
        owner = owner_of(name)
        complete = (m for m in _ancestors(owner) if not any(lies_in(n, m) for n in free))
        groups.setdefault(next(complete, owner), []).append(name)
    return groups


def _ancestors(module: str) -> Iterator[str]:
    """A module and its ancestors, the model first."""
    yield ROOT
    parts = [] if module == ROOT else module.split(".")
    for i in range(1, len(parts) + 1):
        yield ".".join(parts[:i])


def outermost(names: Iterable[str]) -> list[str]:
    """Return the names that lie in none of the others.

    >>> outermost(["a", "a.b", "c"])
    ['a', 'c']
    """
    names = list(names)
    return [n for n in names if not any(n != other and lies_in(n, other) for other in names)]


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
