"""The lines before the names of a tree, which show what belongs to what."""

from __future__ import annotations

from collections.abc import Sequence

from hookscope.specs.module_names import nearest_ancestors
from hookscope.views.text.text_table import TextOptions

BRANCHES = ("├─ ", "└─ ", "│  ", "   ")
ASCII_BRANCHES = ("|- ", "`- ", "|  ", "   ")


def name_guides(names: Sequence[str], options: TextOptions) -> list[tuple[str, str]]:
    """Return the lines drawn before each name, and before the lines that continue its row."""
    branch, last, bar, blank = ASCII_BRANCHES if options.ascii else BRANCHES
    levels: list[int] = []  # how many ancestors each name has among the names before it
    for above in nearest_ancestors(names):
        levels.append(0 if above is None else levels[above] + 1)
    drawn: list[tuple[str, str]] = []
    open_levels: set[int] = set()  # levels that have a sibling further down
    for i in range(len(names) - 1, -1, -1):
        level = levels[i]
        before = "".join(bar if k in open_levels else blank for k in range(1, level))
        own, below = (branch, bar) if level in open_levels else (last, blank)
        inside = bar if i + 1 < len(names) and levels[i + 1] > level else blank
        drawn.append((before + own, before + below + inside) if level else ("", inside))
        open_levels = {k for k in open_levels if k < level} | {level}
    return drawn[::-1]
