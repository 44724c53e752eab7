"""The tree of a page: every module that a file names, under the modules that its name tells of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hookscope.module_tree import ROOT
from hookscope.records import Recording


def names_in(captures: Iterable[Recording]) -> dict[str, str]:
    """Return every module that the captures name, and its type: in order of call, then the others.

    The modules above them are among them, of type ``""`` where nothing tells it.
    """
    types: dict[str, str] = {}
    for capture in captures:
        coverage = capture.coverage
        named = [(one.module, one.type) for one in coverage.fired]
        named += [(one.module, one.type) for one in coverage.silent]
        named += [(one.module, one.type) for one in capture.records]
        named += [(one.module, one.type) for one in capture.absent]
        for name, type in named:
            _put(types, name, type)
    return types


def ordered(names: Iterable[str]) -> Iterator[tuple[str, int, int, int, bool]]:
    """Yield the modules parents first: name, level from 1, place among siblings, their number,
    and whether it has children.

    Example:
        >>> [(name, level) for name, level, *_ in ordered([".", "a", "a.0", "b"])]
        [('.', 1), ('a', 2), ('a.0', 3), ('b', 2)]
    """
    children: dict[str, list[str]] = {}
    for name in names:
        if name != ROOT:
            children.setdefault(parent_of(name), []).append(name)
    waiting = [(ROOT, 1, 1, 1)]
    while waiting:  # no recursion: a name may have any number of parts
        name, level, place, siblings = waiting.pop()
        below = children.get(name, [])
        yield name, level, place, siblings, bool(below)
        waiting += [
            (child, level + 1, n, len(below)) for n, child in reversed([*enumerate(below, 1)])
        ]


def parent_of(name: str) -> str:
    """Return the module that holds another one.

    Example:
        >>> parent_of("layer1.0.conv1"), parent_of("fc")
        ('layer1.0', '.')
    """
    return name.rpartition(".")[0] or ROOT


def _put(types: dict[str, str], name: str, type: str) -> None:
    above = []
    while name not in types or not types[name]:
        above.append((name, type))
        if name == ROOT:
            break
        name, type = parent_of(name), ""
        if name in types:
            break
    for one, its_type in reversed(above):
        types[one] = types.get(one) or its_type
