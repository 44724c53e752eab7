"""The module tree as lines: guides and full names on a terminal, one module a line in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hookscope.results.module_tree import ROOT, ModuleNode, ModuleTree
from hookscope.views.text.lower import lower, sentence
from hookscope.views.text.signature import compact
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import count, plural, short_count, size

TYPE = 20  # characters of a type that stands alone: one long type then costs no column
ARGUMENTS = 48  # characters of arguments on a terminal; a pipe has them all
BRANCHES = ("├─ ", "└─ ", "│  ", "   ")
ASCII_BRANCHES = ("|- ", "`- ", "|  ", "   ")

SQUEEZE: tuple[Squeeze, ...] = (
    ("drop", "own"),
    ("shorten", "parameters"),
    ("shorten", "state"),
    ("shorten", "type"),
    ("drop", "calls"),
    ("drop", "state"),
    ("shorten", "source"),
    ("drop", "note"),
    ("drop", "parameters"),
    ("drop", "source"),
    ("drop", "type"),
    ("drop", "FLOPs"),
    ("drop", "output"),
)


def tree_lines(
    tree: ModuleTree,
    width: int | None,
    ascii: bool = False,
    sources: bool = False,
    failed: str | None = None,
) -> list[Text]:
    """Return the tree and a line of totals.

    Args:
        tree: all modules or some of them; a module hangs under the nearest one that is there.
        width: cells of the terminal, None for a pipe.
        ascii: draw with ASCII characters alone.
        sources: add the file and line of each module's code.
        failed: the module in which the pass failed; None if it came to its end.
    """
    ran = any(node.run for node in tree.nodes)
    guides = _guides([node.name for node in tree.nodes], ASCII_BRANCHES if ascii else BRANCHES)
    rows = tuple(
        Row(
            _cells(node, ran, sources),
            _note(node, failed),
            *drawn,
            gone=bool(node.run and not node.run.calls),
        )
        for node, drawn in zip(tree.nodes, guides, strict=True)
    )
    lines = lower(Table(_columns(ran, sources), rows, SQUEEZE), width, ascii)
    return [*lines, *sentence(_totals(tree, failed is not None), width, ascii, "bold")]


def _columns(ran: bool, sources: bool) -> tuple[Column, ...]:
    columns: tuple[Column, ...] = (
        Column("module"),
        Column("type"),
        Column("own", right=True),
        Column("parameters", "params", right=True),
        Column("state", dull=True),
    )
    if sources:
        columns = (*columns, Column("source", dull=True))
    if not ran:
        return columns
    run = (Column("output"), Column("calls", right=True, dull=True), Column("FLOPs", right=True))
    return columns + run


def _cells(node: ModuleNode, ran: bool, sources: bool) -> tuple[Cell, ...]:
    cells: tuple[Cell, ...] = (
        Cell(node.name),
        type_cell(node.type, node.arguments),
        _amount(node.own_parameters),
        _amount(node.parameters),
        _state(node),
    )
    if sources:
        brief = node.source.rpartition("site-packages/")[2]
        cells = (*cells, Cell(brief, short=brief.rpartition("/")[2], full=node.source))
    if not ran:
        return cells
    if node.run is None or not node.run.calls:
        return (*cells, Cell(), Cell(full="0"), Cell(full="0"))
    flops = node.run.flops
    return (
        *cells,
        Cell(" ".join(node.run.outputs), full=",".join(node.run.outputs)),
        Cell(str(node.run.calls)),
        Cell(short_count(flops) if flops else "", full=str(flops)),
    )


def type_cell(kind: str, arguments: str) -> Cell:
    """Return the cell of a module's type and arguments; the type alone where room is short."""
    return Cell(
        compact(kind, arguments, ARGUMENTS),
        short=kind if len(kind) <= TYPE else f"{kind[: TYPE - 2]}..",
        full=compact(kind, arguments),
        style="cyan",
    )


def _amount(number: int) -> Cell:
    """A number of parameters; blank on a terminal where there are none."""
    return Cell(count(number) if number else "", short_count(number) if number else "", str(number))


def _state(node: ModuleNode) -> Cell:
    if not node.parameters:
        return Cell()
    if node.trainable == node.parameters:
        return Cell("trainable", short="train")
    return Cell("partly", style="yellow") if node.trainable else Cell("frozen", style="blue")


def _note(node: ModuleNode, failed: str | None) -> Cell:
    if failed is not None and failed == node.name:
        return Cell("failed", style="bold red")
    if failed is not None and (node.name == ROOT or failed.startswith(f"{node.name}.")):
        return Cell("failed inside", style="red")
    if failed is not None and node.run is not None and not node.run.calls:
        return Cell("not reached", style="yellow")
    if node.run is not None and not node.run.calls:
        return Cell("never ran", style="yellow")
    return Cell("= " + ", ".join(node.aliases), style="magenta") if node.aliases else Cell()


def _guides(names: Sequence[str], branches: Sequence[str]) -> list[tuple[str, str]]:
    """What is drawn before each name, and before the lines that continue it.

    A name's parent is the nearest name above it in the list that its own name begins with.
    """
    branch, last, bar, blank = branches
    levels = _levels(names)
    drawn: list[tuple[str, str]] = []
    open_levels: set[int] = set()  # those with a sibling further down
    for i in range(len(names) - 1, -1, -1):
        level = levels[i]
        before = "".join(bar if k in open_levels else blank for k in range(1, level))
        own, below = (branch, bar) if level in open_levels else (last, blank)
        inside = bar if i + 1 < len(names) and levels[i + 1] > level else blank
        drawn.append((before + own, before + below + inside) if level else ("", inside))
        open_levels = {k for k in open_levels if k < level} | {level}
    return drawn[::-1]


def _levels(names: Sequence[str]) -> list[int]:
    """How many of the names before each one it lies under; 0 for those that begin a tree."""
    levels: list[int] = []
    above: list[str] = []
    for name in names:
        while above and not (above[-1] == ROOT or name.startswith(above[-1] + ".")):
            above.pop()
        levels.append(len(above))
        above.append(name)
    return levels


def _totals(tree: ModuleTree, failed: bool) -> str:
    total = tree.total
    if not total.parameters:
        trainable = ""
    elif total.trainable == total.parameters:
        trainable = " (all trainable)"
    else:
        trainable = f" ({count(total.trainable) if total.trainable else 'none'} trainable)"
    parts = [
        plural(total.parameters, "parameter") + trainable,
        plural(total.buffers, "buffer value"),
        size(total.bytes),
    ]
    if total.run is not None:
        until = " until it failed" if failed else ""
        parts.append(f"{short_count(total.run.flops)} FLOPs{until}")
    return f"{tree.model}: {', '.join(parts)}. {plural(len(tree.nodes), 'module')} listed."
