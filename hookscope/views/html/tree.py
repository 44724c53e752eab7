"""The tree of a page: every module that a file names, under the modules that its name tells of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hookscope.results.module_tree import ROOT
from hookscope.results.records import Recording
from hookscope.views.html.missing import NEVER_RAN, Missing
from hookscope.views.html.model import Entry, Node
from hookscope.views.text.text import visible

Place = tuple[str, int, int, int, bool]  # as ``ordered`` yields it


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
    return types or {ROOT: ""}  # a file that holds nothing still is of a model


def ordered(names: Iterable[str]) -> Iterator[Place]:
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


def nodes_of(
    captures: Sequence[Recording],
    places: Iterable[Place],
    types: Mapping[str, str],
    entries: Mapping[str, Sequence[Entry]],
    notes: Sequence[Mapping[str, str]],
    missing: Iterable[Missing],
) -> Iterator[Node]:
    """Yield the modules as the page shows them, each with its panel.

    Args:
        captures: the files, one or two.
        places: every module: see ``ordered``.
        types: of the modules.
        entries: what the panel of a module holds.
        notes: for each file what must not be overlooked, by key.
        missing: what the files have not.
    """
    reasons: dict[str, list[str]] = {}
    calls: dict[str, int] = {}
    marks: dict[str, dict[str, None]] = {}
    for one in missing:
        text = f"{one.what} {one.told}." if one.what else f"{one.told[0].upper()}{one.told[1:]}."
        reasons.setdefault(one.module, []).append(text)
        if not one.what:
            marks.setdefault(one.module, {})[NEVER_RAN] = None
    for capture, told in zip(captures, notes, strict=True):
        for fired in capture.coverage.fired:
            calls[fired.module] = max(fired.calls, calls.get(fired.module, 0))
        for record in capture.records:
            if record.key in told:
                word = told[record.key].partition(" ")[0].rstrip(",:")
                marks.setdefault(record.module, {})[word] = None
    for name, level, place, siblings, opens in places:
        yield Node(
            visible(name),
            visible(name.rpartition(".")[2] or name),
            visible(types[name]),
            level,
            place,
            siblings,
            opens,
            calls.get(name, 0),
            tuple(marks.get(name, ())),
            tuple(map(visible, reasons.get(name, ()))),
            tuple(entries.get(name, ())),
        )


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
