"""The tree of modules on a page, and what is missing in the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hookscope.escapes import visible
from hookscope.files.words import shape_text
from hookscope.results.records import Recording
from hookscope.specs.module_names import ancestors_of, parent_of
from hookscope.specs.patterns import ROOT, layer_text
from hookscope.specs.tensor_key import OUTPUT, OUTPUT_GRAD
from hookscope.views.html.page import PageFigure, TreeItem

NEVER_RAN = "never ran"
MAX_UNFOLDED = 24  # modules of a model whose graph is unfolded at first


@dataclass(frozen=True)
class TensorPanel:
    """One tensor in one file: facts, each a name and a text, and figures."""

    file: str
    facts: tuple[tuple[str, str], ...]
    figures: tuple[PageFigure, ...]
    note: str = ""


@dataclass(frozen=True)
class PanelEntry:
    """One tensor of a layer, with a panel for each file that has it."""

    key: str
    panels: tuple[TensorPanel, ...]


@dataclass(frozen=True)
class PageNode(TreeItem):
    """A module in the tree, and the content of its panel; ``unused`` if it never ran in a file."""

    type: str
    calls: int
    unused: bool
    marks: tuple[str, ...]
    notes: tuple[str, ...]
    entries: tuple[PanelEntry, ...]
    shape: str
    follows: bool
    unfolded: bool


@dataclass(frozen=True)
class TensorNote:
    """A warning of a tensor as a text, and its marks: the words that the tree shows of it."""

    text: str = ""
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class MissingEntry:
    """A layer that never ran or a tensor that does not exist, in one file."""

    letter: str
    module: str
    type: str
    call: int | None
    what: str
    reason: str


def missing_entries(
    captures: Sequence[Recording], letters: Sequence[str]
) -> Iterator[MissingEntry]:
    """Yield what is missing in each file: first the layers that never ran, then tensors."""
    for capture, letter in zip(captures, letters, strict=True):
        where = f" in {letter}" if letter else ""
        for module in capture.coverage.not_executed:
            reason = f"{NEVER_RAN}{where}: {module.reason}"
            yield MissingEntry(letter, module.module, module.type, None, "", reason)
        for absent in capture.absent:
            reason = f"does not exist{where}: {absent.reason}"
            origin = (absent.module, absent.type, absent.call, absent.what)
            yield MissingEntry(letter, *origin, reason)


def module_types(captures: Iterable[Recording]) -> dict[str, str]:
    """Return the type of each module and its ancestors, ``""`` if unknown, in order of call."""
    types: dict[str, str] = {}
    for capture in captures:
        coverage = capture.coverage
        groups = (coverage.executed, coverage.not_executed, capture.records, capture.absent)
        for group in groups:
            for entry in group:
                _add_with_parents(types, entry.module, entry.type)
    return types or {ROOT: ""}  # an empty file is still a file of a model


def tree_items(names: Iterable[str]) -> Iterator[tuple[str, TreeItem]]:
    """Yield the names of modules, parents first, each with its item, whose name is escaped.

    >>> [(name, item.level) for name, item in tree_items([".", "a", "a.0", "b"])]
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
        label = visible(layer_text(name.rpartition(".")[2] or name))
        yield name, TreeItem(visible(name), label, level, place, siblings, opens=bool(below))
        waiting += [
            (child, level + 1, n, len(below)) for n, child in reversed([*enumerate(below, 1)])
        ]


def page_nodes(
    captures: Sequence[Recording],
    items: Mapping[str, TreeItem],
    types: Mapping[str, str],
    entries: Mapping[str, Sequence[PanelEntry]],
    notes: Sequence[Mapping[str, TensorNote]],
    missing: Sequence[MissingEntry],
) -> Iterator[PageNode]:
    """Yield the nodes of the tree, each with the content of its panel."""
    unused = {entry.module for entry in missing if not entry.what}
    reasons = _reasons(missing)
    marks = _marks(captures, notes)
    calls = _call_counts(captures)
    shapes = _output_shapes(captures)
    followers = _followers(items, captures[0])
    unfolded = _unfolded(items)
    for name, item in items.items():
        yield PageNode(
            **vars(item),
            type=visible(types[name]),
            calls=calls.get(name, 0),
            unused=name in unused,
            marks=(*[NEVER_RAN] * (name in unused), *marks.get(name, ())),
            notes=tuple(map(visible, reasons.get(name, ()))),
            entries=tuple(entries.get(name, ())),
            shape=shapes.get(name, ""),
            follows=name in followers,
            unfolded=name in unfolded,
        )


def _reasons(missing: Iterable[MissingEntry]) -> dict[str, list[str]]:
    """Sentences on what is missing, by module."""
    reasons: dict[str, list[str]] = {}
    for entry in missing:
        if entry.what:
            text = f"{entry.what} {entry.reason}."
        else:
            text = f"{entry.reason[0].upper()}{entry.reason[1:]}."
        reasons.setdefault(entry.module, []).append(text)
    return reasons


def _marks(
    captures: Iterable[Recording], notes: Iterable[Mapping[str, TensorNote]]
) -> dict[str, dict[str, None]]:
    """The different marks of the tensors of each module, in their order."""
    marks: dict[str, dict[str, None]] = {}
    for capture, notes_by_key in zip(captures, notes, strict=True):
        for record in capture.records:
            if record.key in notes_by_key:
                new = dict.fromkeys(notes_by_key[record.key].marks)
                marks.setdefault(record.module, {}).update(new)
    return marks


def _call_counts(captures: Iterable[Recording]) -> dict[str, int]:
    """The largest number of calls of each module in a file."""
    calls: dict[str, int] = {}
    for capture in captures:
        for executed in capture.coverage.executed:
            calls[executed.module] = max(executed.calls, calls.get(executed.module, 0))
    return calls


def _followers(names: Iterable[str], first: Recording) -> set[str]:
    """The modules that ran after the sibling before them, in the order of the first file."""
    ran = {executed.module for executed in first.coverage.executed}
    ran |= ancestors_of(ran)
    followers = set()
    previous: dict[str, str] = {}  # the sibling before, by their parent
    for name in names:
        parent = parent_of(name)
        if name == ROOT:
            continue
        if name in ran and previous.get(parent) in ran:
            followers.add(name)
        previous[parent] = name
    return followers


def _unfolded(items: Mapping[str, TreeItem]) -> set[str]:
    """The modules that the graph unfolds at first: all of a small model, else only children."""
    unfolded: set[str] = set()
    for name, item in items.items():
        only_child = item.siblings == 1 and parent_of(name) in unfolded
        if name == ROOT or len(items) <= MAX_UNFOLDED or only_child:
            unfolded.add(name)
    return unfolded


def _output_shapes(captures: Iterable[Recording]) -> dict[str, str]:
    """The shape of the first output of each module, where it or its gradient is recorded."""
    shapes: dict[str, str] = {}
    for capture in captures:
        for record in capture.records:
            if record.kind in (OUTPUT, OUTPUT_GRAD) and record.call == 1:
                shapes.setdefault(record.module, shape_text(record.shape))
    return shapes


def _add_with_parents(types: dict[str, str], name: str, type: str) -> None:
    above = []
    while name not in types or not types[name]:
        above.append((name, type))
        if name == ROOT:
            break
        name, type = parent_of(name), ""
        if name in types:
            break
    for ancestor, ancestor_type in reversed(above):
        types[ancestor] = types.get(ancestor) or ancestor_type
