"""The module tree as lines: guides and full names on a terminal, one module a line in a pipe."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text

from hookscope.results.module_tree import ROOT, ModuleNode, ModuleTree
from hookscope.views.text.formats import bytes_text, count_text, plural, short_count_text
from hookscope.views.text.text_table import Cell, Column, Row, Squeeze, Table, sentence, table_lines

MAX_TYPE_LENGTH = 20  # characters of a type that stands alone: one long type then costs no column

MAX_ARGUMENTS_LENGTH = 48  # characters of arguments on a terminal; a pipe has them all

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
    lines = table_lines(Table(_columns(ran, sources), rows, SQUEEZE), width, ascii)
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
        Cell(short_count_text(flops) if flops else "", full=str(flops)),
    )


def type_cell(kind: str, arguments: str) -> Cell:
    """Return the cell of a module's type and arguments; the type alone where room is short."""
    return Cell(
        short_signature(kind, arguments, MAX_ARGUMENTS_LENGTH),
        short=kind if len(kind) <= MAX_TYPE_LENGTH else f"{kind[: MAX_TYPE_LENGTH - 2]}..",
        full=short_signature(kind, arguments),
        style="cyan",
    )


def _amount(number: int) -> Cell:
    """A number of parameters; blank on a terminal where there are none."""
    return Cell(
        count_text(number) if number else "",
        short_count_text(number) if number else "",
        str(number),
    )


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
        trainable = f" ({count_text(total.trainable) if total.trainable else 'none'} trainable)"
    parts = [
        plural(total.parameters, "parameter") + trainable,
        plural(total.buffers, "buffer value"),
        bytes_text(total.bytes),
    ]
    if total.run is not None:
        until = " until it failed" if failed else ""
        parts.append(f"{short_count_text(total.run.flops)} FLOPs{until}")
    return f"{tree.model}: {', '.join(parts)}. {plural(len(tree.nodes), 'module')} listed."


# Said by their place alone, as in Conv2d(3, 64, 7x7).
UNNAMED_ARGUMENTS = {
    "in_features",
    "out_features",
    "kernel_size",
    "output_size",
    "normalized_shape",
    "p",
}

# Say nothing about what a layer does to a shape or a value at a glance.
HIDDEN_ARGUMENTS = {
    *("bias", "eps", "momentum", "affine", "elementwise_affine", "track_running_stats"),
    *("padding", "output_padding", "ceil_mode", "count_include_pad", "return_indices"),
}

# Shown when they are not 1, as in "stride 2".
SHOWN_UNLESS_ONE = {"stride", "dilation", "groups"}

_KEYWORD = re.compile(r"(\w+)\s*=\s*(.+)", re.DOTALL)

_NUMBERS = re.compile(r"\(\s*-?\d+(?:\s*,\s*-?\d+)*\s*,?\s*\)")

_CLOSES = {")": "(", "]": "[", "}": "{"}


def short_signature(kind: str, arguments: str, limit: int | None = None) -> str:
    """Return type and arguments in short form.

    Args:
        kind: the type's name.
        arguments: what the module's ``extra_repr()`` gave; anything that cannot be read as a list
            of arguments is kept as it is, on one line.
        limit: cut the arguments to this many characters, with ``...`` for the rest.

    Example:
        >>> compact("Conv2d", "3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3)")
        'Conv2d(3, 64, 7x7, stride 2)'
        >>> compact("ReLU", "inplace=True"), compact("MaxPool2d", "kernel_size=3, stride=2")
        ('ReLU(inplace)', 'MaxPool2d(3x3, stride 2)')
    """
    text = " ".join(arguments.split())
    parts = split_arguments(text)
    if parts is not None:
        text = ", ".join(shown for part in parts if (shown := _argument(part, kind)))
    if limit is not None and len(text) > limit:
        text = text[: limit - 3].rstrip() + "..."
    return f"{kind}({text})" if text else kind


def split_arguments(text: str) -> list[str] | None:
    """Split at the commas outside brackets and quotes; None where those do not match up."""
    parts, start, quote = [], 0, ""
    open_brackets: list[str] = []
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            open_brackets.append(character)
        elif character in ")]}":
            if not open_brackets or open_brackets.pop() != _CLOSES[character]:
                return None
        elif character == "," and not open_brackets:
            parts.append(text[start:i].strip())
            start = i + 1
    if quote or open_brackets:
        return None
    return [*parts, text[start:].strip()]


def _argument(part: str, kind: str) -> str:
    keyword = _KEYWORD.fullmatch(part)
    if not keyword:
        return _value(part)
    name, value = keyword.groups()
    if name in HIDDEN_ARGUMENTS or value in ("False", "None"):
        return ""
    if value == "True":
        return name
    if name in SHOWN_UNLESS_ONE:
        numbers = set(_numbers(value) or [value])
        if numbers == {"1"}:
            return ""
        return f"{name} {numbers.pop() if len(numbers) == 1 else _value(value)}"
    if name == "kernel_size" and value.isdigit():
        return "x".join([value] * _spatial_dimensions(kind))
    return _value(value) if name in UNNAMED_ARGUMENTS else f"{name}={_value(value)}"


def _numbers(value: str) -> list[str]:
    """The integers of a written tuple; empty for anything else."""
    return re.findall(r"-?\d+", value) if _NUMBERS.fullmatch(value) else []


def _value(value: str) -> str:
    if numbers := _numbers(value):
        return "x".join(numbers)
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _spatial_dimensions(kind: str) -> int:
    """How many dimensions a type's name claims: 2 for MaxPool2d, 1 where it claims none."""
    claimed = re.search(r"([123])d$", kind)
    return int(claimed[1]) if claimed else 1
