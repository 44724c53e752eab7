"""A module tree as text: a row for each module, with its type in short form and its size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.text import Text

from hookscope.files.words import bytes_text, count_text, plural, short_count_text
from hookscope.results.module_tree import ModuleNode, ModuleTree
from hookscope.results.receptive_field import ReceptiveField
from hookscope.specs.patterns import ROOT, layer_text
from hookscope.views.display import View, json_document
from hookscope.views.text.name_guides import name_guides
from hookscope.views.text.shared_parts import ALERT_STYLE, NOTICE_STYLE, count_cell
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, result_table, sentence

MAX_OTHER_SHAPES = 2
MAX_TYPE_LENGTH = 20  # characters of a type alone; a long one then takes no room from columns
MAX_ARGUMENTS_LENGTH = 48  # characters of arguments on a terminal; a pipe has all
FIELD_TITLES = ("field", "stride", "centre")  # of receptive fields, in positions of the input
MAX_ABSENT = 5  # sentences on modules that are not in the file
SQUEEZE = (
    *drop("own"),
    *shorten("parameters", "state", "type"),
    *drop("calls", "state"),
    *shorten("source"),
    *drop("note", "parameters", "source", "type", "FLOPs", "output", "centre", "stride", "field"),
)
# Printed without their name, as in Conv2d(3, 64, 7x7).
UNNAMED_ARGUMENTS = {
    *("in_features", "out_features", "kernel_size", "output_size", "normalized_shape", "p"),
}
# Not printed: they hardly affect the shape or the values of the output.
HIDDEN_ARGUMENTS = {
    *("bias", "eps", "momentum", "affine", "elementwise_affine", "track_running_stats"),
    *("padding", "output_padding", "ceil_mode", "count_include_pad", "return_indices"),
}
# Printed if they are not 1, as in "stride 2".
SHOWN_UNLESS_ONE = {"stride", "dilation", "groups"}
_KEYWORD = re.compile(r"(\w+)\s*=\s*(.+)", re.DOTALL)
_NUMBERS = re.compile(r"\(\s*-?\d+(?:\s*,\s*-?\d+)*\s*,?\s*\)")
_BRACKETS = {")": "(", "]": "[", "}": "{"}


def tree_lines(tree: ModuleTree, options: TextOptions, failed: str | None = None) -> list[Text]:
    """Return the tree and a line of totals."""
    shown = _Shown.of(tree, options.verbose)
    names = [node.name for node in tree.modules]
    guides = name_guides(names, options)
    rows = tuple(
        Row(
            _cells(node, shown, options.ascii),
            _note(node, failed),
            *guide,
            missing=bool(node.run and not node.run.calls),
        )
        for node, guide in zip(tree.modules, guides, strict=True)
    )
    lines = result_table(Table(tree_columns(shown), rows, SQUEEZE), options)
    lines += sentence(_totals(tree, failed is not None), options, "bold")
    for text in _absent_texts(tree, options.verbose):
        lines += sentence(text, options)
    return lines


@dataclass(frozen=True)
class _Shown:
    """Which optional columns a tree has: of the source, of a run, of receptive fields."""

    sources: bool = True
    ran: bool = True
    fields: bool = True

    @classmethod
    def of(cls, tree: ModuleTree, sources: bool) -> _Shown:
        ran = any(node.run for node in tree.modules)
        return cls(sources, ran, any(node.field for node in tree.modules))


def tree_columns(shown: _Shown) -> tuple[Column, ...]:
    """Return the columns of a tree."""
    columns: tuple[Column, ...] = (
        Column("layer"),
        Column("type"),
        Column("own", right=True),
        Column("parameters", "params", right=True),
        Column("state", optional=True),
    )
    if shown.sources:
        columns = (*columns, Column("source", optional=True))
    if shown.fields:
        columns = (*columns, *(Column(title, right=True) for title in FIELD_TITLES))
    if not shown.ran:
        return columns
    calls = Column("calls", right=True, optional=True)
    return (*columns, Column("output"), calls, Column("FLOPs", right=True))


def _cells(node: ModuleNode, shown: _Shown, ascii: bool) -> tuple[Cell, ...]:
    cells: tuple[Cell, ...] = (
        Cell(layer_text(node.name)),
        type_cell(node.type, node.arguments),
        _count_cell(node.own_parameters),
        _count_cell(node.parameters),
        _state_cell(node),
    )
    if shown.sources:
        source = node.source.rpartition("site-packages/")[2]
        cells = (*cells, Cell(source, short=source.rpartition("/")[2], full=node.source))
    if shown.fields:
        cells = (*cells, *_field_cells(node.field, ascii))
    if not shown.ran:
        return cells
    if node.run is None or not node.run.calls:
        return (*cells, Cell(), Cell(value=0), Cell(value=0))
    flops = node.run.flops
    return (
        *cells,
        Cell(" ".join(node.run.outputs), full=",".join(node.run.outputs)),
        count_cell(node.run.calls),
        Cell(short_count_text(flops) if flops else "", value=flops),
    )


def _field_cells(field: ReceptiveField | None, ascii: bool) -> tuple[Cell, ...]:
    """Size, stride and first centre, with a number for each side of the input."""
    if field is None:
        return Cell(), Cell(), Cell()
    sides = field.sides
    sizes = [
        "all" if side.whole else f"{('>=' if ascii else '≥') * side.cut}{side.size}"
        for side in sides
    ]
    texts = ["all" if all(side.whole for side in sides) else "x".join(sizes)]
    for numbers in ([side.stride for side in sides], [side.centre for side in sides]):
        known = any(number is not None for number in numbers)
        each = ("?" if number is None else f"{number:.4g}" for number in numbers)
        texts.append("x".join(each) if known else "")
    return tuple(map(Cell, texts))


def type_cell(kind: str, arguments: str) -> Cell:
    """Return the cell of a module's type and arguments; on a narrow terminal the type alone."""
    return Cell(
        short_signature(kind, arguments, MAX_ARGUMENTS_LENGTH),
        short=kind if len(kind) <= MAX_TYPE_LENGTH else f"{kind[: MAX_TYPE_LENGTH - 2]}..",
        full=short_signature(kind, arguments),
        style="cyan",
    )


def _count_cell(number: int) -> Cell:
    """A number of parameters; a zero is blank on a terminal."""
    return Cell(
        count_text(number) if number else "",
        short_count_text(number) if number else "",
        value=number,
    )


def _state_cell(node: ModuleNode) -> Cell:
    if not node.parameters:
        return Cell()
    if node.trainable == node.parameters:
        return Cell("trainable", short="train")
    return Cell("partly", style=NOTICE_STYLE) if node.trainable else Cell("frozen", style="blue")


def _note(node: ModuleNode, failed: str | None) -> Cell:
    if failed is not None and failed == node.name:
        return Cell("failed", style=ALERT_STYLE)
    if failed is not None and (node.name == ROOT or failed.startswith(f"{node.name}.")):
        return Cell("failed inside", style="red")
    if failed is not None and node.run is not None and not node.run.calls:
        return Cell("not reached", style=NOTICE_STYLE)
    if node.run is not None and not node.run.calls:
        return Cell(node.note or "never ran", style=NOTICE_STYLE)
    if node.note:
        return Cell(node.note, style=NOTICE_STYLE)
    if node.run is not None and node.run.other_outputs:
        return Cell(f"later calls: {_some(node.run.other_outputs)}", style=NOTICE_STYLE)
    return Cell("= " + ", ".join(node.aliases), style="magenta") if node.aliases else Cell()


def _some(texts: tuple[str, ...]) -> str:
    more = len(texts) - MAX_OTHER_SHAPES
    shown = ", ".join(texts[:MAX_OTHER_SHAPES])
    return f"{shown} and {plural(more, 'other shape')}" if more > 0 else shown


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
        if total.run.flops is not None:
            parts.append(f"{short_count_text(total.run.flops)} FLOPs{until}")
    return f"{tree.model}: {', '.join(parts)}. {plural(len(tree.modules), 'layer')} listed."


def _absent_texts(tree: ModuleTree, every: bool) -> list[str]:
    """A sentence on each module that is not in the file; on the first ones unless ``every``."""
    shown = tree.absent if every else tree.absent[:MAX_ABSENT]
    texts = [f"Not in the file: {module.name}: {module.reason}." for module in shown]
    if len(shown) < len(tree.absent):
        texts.append(f"... and {plural(len(tree.absent) - len(shown), 'more module')} (-v).")
    return texts


def short_signature(kind: str, arguments: str, limit: int | None = None) -> str:
    """Return type and arguments in short form.

    >>> short_signature("Conv2d", "3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3)")
    'Conv2d(3, 64, 7x7, stride 2)'
    >>> short_signature("ReLU", "inplace=True")
    'ReLU(inplace)'
    >>> short_signature("MaxPool2d", "kernel_size=3, stride=2")
    'MaxPool2d(3x3, stride 2)'
    """
    text = " ".join(arguments.split())
    parts = split_arguments(text)
    if parts is not None:
        text = ", ".join(shown for part in parts if (shown := _argument(part, kind)))
    if limit is not None and len(text) > limit:
        text = text[: limit - 3].rstrip() + "..."
    return f"{kind}({text})" if text else kind


def split_arguments(text: str) -> list[str] | None:
    """Split at commas outside brackets and quotes; None if brackets or quotes are not closed."""
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
            if not open_brackets or open_brackets.pop() != _BRACKETS[character]:
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
    """The integers of a tuple in text; empty for any other text."""
    return re.findall(r"-?\d+", value) if _NUMBERS.fullmatch(value) else []


def _value(value: str) -> str:
    if numbers := _numbers(value):
        return "x".join(numbers)
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _spatial_dimensions(kind: str) -> int:
    """The number of dimensions in a type's name: 2 for MaxPool2d; 1 if the name has none."""
    match = re.search(r"([123])d$", kind)
    return int(match[1]) if match else 1


VIEW: View[ModuleTree] = View(
    tree_lines,
    json_document("tree"),
    columns=(*tree_columns(_Shown()), NOTE),
)
