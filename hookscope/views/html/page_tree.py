"""The tree of a page: every module that a file names, under the modules that its name tells of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hookscope.results.module_tree import ROOT
from hookscope.results.records import Recording
from hookscope.views.html.page import PageNode, PanelEntry
from hookscope.views.text.formats import visible

TreePosition = tuple[str, int, int, int, bool]  # as ``ordered`` yields it


def module_types(captures: Iterable[Recording]) -> dict[str, str]:
    """Return every module that the captures name, and its type: in order of call, then the others.

    The modules above them are among them, of type ``""`` where nothing tells it.
    """
    types: dict[str, str] = {}
    for capture in captures:
        coverage = capture.coverage
        named = [(one.module, one.type) for one in coverage.executed]
        named += [(one.module, one.type) for one in coverage.not_executed]
        named += [(one.module, one.type) for one in capture.records]
        named += [(one.module, one.type) for one in capture.absent]
        for name, type in named:
            _add_with_parents(types, name, type)
    return types or {ROOT: ""}  # a file that holds nothing still is of a model


def tree_positions(names: Iterable[str]) -> Iterator[TreePosition]:
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


def page_nodes(
    captures: Sequence[Recording],
    places: Iterable[TreePosition],
    types: Mapping[str, str],
    entries: Mapping[str, Sequence[PanelEntry]],
    notes: Sequence[Mapping[str, str]],
    missing: Iterable[MissingEntry],
) -> Iterator[PageNode]:
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
        for executed in capture.coverage.executed:
            calls[executed.module] = max(executed.calls, calls.get(executed.module, 0))
        for record in capture.records:
            if record.key in told:
                word = told[record.key].partition(" ")[0].rstrip(",:")
                marks.setdefault(record.module, {})[word] = None
    for name, level, place, siblings, opens in places:
        yield PageNode(
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


def _add_with_parents(types: dict[str, str], name: str, type: str) -> None:
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


NEVER_RAN = "never ran"


@dataclass(frozen=True)
class MissingEntry:
    """Something of a layer that one file has not, and why.

    Attributes:
        letter: of the file; empty where there is one only.
        module: name of the layer.
        type: its class name.
        call: which call of it; None for a layer that never ran.
        what: ``weight.grad``, say; empty for a layer that never ran.
        told: a clause: ``never ran in A: a container``.
    """

    letter: str
    module: str
    type: str
    call: int | None
    what: str
    told: str


def missing_entries(
    captures: Sequence[Recording], letters: Sequence[str]
) -> Iterator[MissingEntry]:
    """Yield what is missing of each file: first the layers that never ran, in order of the tree."""
    for capture, letter in zip(captures, letters, strict=True):
        where = f" in {letter}" if letter else ""
        for one in capture.coverage.not_executed:
            told = f"{NEVER_RAN}{where}: {one.reason}"
            yield MissingEntry(letter, one.module, one.type, None, "", told)
        for absent in capture.absent:
            told = f"does not exist{where}: {absent.reason}"
            place = (absent.module, absent.type, absent.call, absent.what)
            yield MissingEntry(letter, *place, told)
