"""Names of parameters gathered to the names of modules: few findings instead of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hookscope.results.module_tree import ROOT


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
    """Gather names by the largest module of which all names are marked.

    Names of a module that has others too stay under the module itself.

    >>> topmost(["a.b.w", "a.b.v", "c.w"], ["a.b.w", "a.b.v", "a.z", "c.w", "c.v"])
    {'a.b': ['a.b.w', 'a.b.v'], 'c': ['c.w']}
    """
    marked, free = list(marked), set(everything) - set(marked)
    found: dict[str, list[str]] = {}
    for name in marked:
        own = owner_of(name)
        whole = next((m for m in _above(own) if not any(lies_in(n, m) for n in free)), own)
        found.setdefault(whole, []).append(name)
    return found


def _above(module: str) -> Iterator[str]:
    """A module and those above it, the model first."""
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
    """Gather sets of names by the modules that they lie in at the same place; count the names.

    >>> alike([("a.x.weight", "b.x.weight"), ("a.x.bias", "b.x.bias")])
    {('a', 'b'): 2}
    """
    found: dict[tuple[str, ...], int] = {}
    for names in sets:
        parts = [name.split(".") for name in names]
        while all(len(p) > 1 for p in parts) and len({p[-1] for p in parts}) == 1:
            parts = [p[:-1] for p in parts]
        key = tuple(".".join(p) for p in parts)
        found[key] = found.get(key, 0) + 1
    return found
