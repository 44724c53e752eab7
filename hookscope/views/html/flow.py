"""How values and gradients flow: one drawing each for a page, by layer in execution order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from hookscope.results.module_tree import ROOT
from hookscope.results.reader import OpenCapture
from hookscope.results.records import Record
from hookscope.specs.record_kinds import OUTPUT, OUTPUT_GRAD, PARAM_GRAD
from hookscope.views.html.drawing import Point, flow_figure
from hookscope.views.html.model import Figure
from hookscope.views.html.tree import parent_of
from hookscope.views.text.text import visible

DEEPEST = 4  # words of a name that a label has
_LOG = "The scale is logarithmic; a hollow mark at an edge is a zero, or no finite entry."
# Of which kind, what is drawn, and what it means.
_KINDS: tuple[tuple[str, Callable[[Record], float | None], str, str], ...] = (
    (OUTPUT, lambda r: r.stats.std, "Spread of activations", "Standard deviation of each output."),
    (OUTPUT_GRAD, lambda r: r.stats.norm, "Gradient at outputs", "Euclidean norm of each one."),
    (PARAM_GRAD, lambda r: r.stats.norm, "Gradient at parameters", "Euclidean norm of each one."),
)


def flow_figures(
    captures: Sequence[OpenCapture],
    letters: Sequence[str],
    shown: Sequence[str],
    nodes: Mapping[str, int],
) -> tuple[Figure, ...]:
    """Return a drawing for each kind of value that the files hold of two layers or more.

    Only layers that hold no other recorded one are drawn: their holders repeat them.

    Args:
        captures: the files, one or two.
        letters: what the page calls each.
        shown: keys, in recorded order.
        nodes: places of modules in the tree.
    """
    figures = []
    chosen = set(shown)
    for kind, value, title, about in _KINDS:
        found = [
            {r.key: r for r in capture.records if r.kind == kind and r.key in chosen}
            for capture in captures
        ]
        records = {key: one for side in reversed(found) for key, one in side.items()}
        above = _holders(record.module for record in records.values())
        keys = [key for key in shown if key in records and records[key].module not in above]
        if kind != OUTPUT:  # gradients arrive last layer first
            keys.reverse()
        if len(keys) < 2:
            continue
        lines = [
            (
                letter,
                [
                    Point(n, visible(key), nodes[side[key].module], _or_nan(value(side[key])))
                    for n, key in enumerate(keys)
                    if key in side
                ],
            )
            for letter, side in zip(letters, found, strict=True)
        ]
        names = _parts([records[key].module for key in keys])
        drawn = [(letter, points) for letter, points in lines if points]
        both = "A is the whole line, B the broken one. " if len(drawn) > 1 else ""
        figures.append(flow_figure(title, f"{about} {both}{_LOG}", drawn, names))
    return tuple(figures)


def _parts(modules: Sequence[str]) -> list[str]:
    """The part of the model at each place; of one with more than half of them, its own parts."""
    words = [name.split(".") if name != ROOT else [ROOT] for name in modules]
    names = [one[0] for one in words]
    for depth in range(2, DEEPEST + 1):
        name, times = Counter(names).most_common(1)[0]
        if times * 2 <= len(names):
            break
        names = [
            ".".join(one[:depth]) if part == name else part
            for one, part in zip(words, names, strict=True)
        ]
    return list(map(visible, names))


def _holders(modules: Iterable[str]) -> set[str]:
    """Every module that holds one of ``modules``."""
    found = {ROOT}
    for name in modules:
        while (name := parent_of(name)) not in found:
            found.add(name)
    return found


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
