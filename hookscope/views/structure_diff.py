"""The layers that differ between two models, as text: a row for each, and the totals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text

from hookscope.files.words import count_text, plural, shape_text, short_count_text
from hookscope.results.structure_diff import (
    ADDED,
    CHANGED,
    REMOVED,
    RENAMED,
    ComparedModel,
    LayerChange,
    OwnTensor,
    StructureDiff,
)
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, json_document
from hookscope.views.module_tree import split_arguments, type_cell
from hookscope.views.text.shared_parts import ALERT_STYLE, NOTICE_STYLE, styled_lines
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table

COLUMNS = (
    Column("layer"),
    Column("change"),
    Column("B"),
    Column("type"),
    Column("parameters", "params", right=True),
)
SQUEEZE = (*shorten("type", "parameters"), *drop("type", "parameters"))
_STYLES = {ADDED: "green", REMOVED: "red"}
_FORMATS = {
    "TorchScript": "a scripted or traced model",
    "exported": "an exported program",
    "ONNX": "an ONNX file",
}


def structure_lines(result: StructureDiff, options: TextOptions) -> list[Text]:
    """Return the table of what changed, and the totals; a pipe has a row for each change."""
    groups = [[change] for change in result.changes]
    if options.width is not None:
        groups = list(_grouped(result.changes))
    table = Table(COLUMNS, tuple(map(_row, groups)), SQUEEZE)
    lines = result_table(table, options) if groups else []
    return join_blocks(lines, styled_lines(_sentences(result), options), options=options)


def _grouped(changes: tuple[LayerChange, ...]) -> Iterator[list[LayerChange]]:
    """Changes that follow each other and differ in the number of the layer alone."""
    group: list[LayerChange] = []
    for change in changes:
        if group and _follows(change, group[-1]):
            group.append(change)
            continue
        if group:
            yield group
        group = [change]
    if group:
        yield group


def _follows(change: LayerChange, before: LayerChange) -> bool:
    """Whether a change is that of the layer before, with the next number."""
    if change.change not in (ADDED, REMOVED, RENAMED):
        return False
    if change.change != RENAMED and change.types != before.types:
        return False
    same = (change.change, change.details, change.reason)
    return same == (before.change, before.details, before.reason) and all(
        _next_name(name) == other for name, other in zip(before.names, change.names, strict=True)
    )


def _next_name(name: str) -> str:
    last = name.rpartition(".")[2]
    return f"{name.removesuffix(last)}{int(last) + 1}" if last.isdigit() else name


def _row(group: list[LayerChange]) -> Row:
    """The row of a change, or of several that differ in their number alone."""
    first, last = group[0], group[-1]
    gained = sum(change.gained for change in group)
    names = [_span(*pair) for pair in zip(first.names, last.names, strict=True)]
    style = _STYLES.get(first.change, NOTICE_STYLE)
    counted = f"{gained:+,}" if gained else ""
    short = f"{'+' if gained > 0 else '-'}{short_count_text(abs(gained))}" if gained else ""
    cells = (
        Cell(names[0] or names[1]),
        Cell(first.change, style=style),
        Cell(names[1] if all(names) and names[0] != names[1] else ""),
        _type_cell(first) if len({change.types for change in group}) == 1 else Cell(),
        Cell(counted, short, value=gained),
    )
    return Row(cells, Cell("; ".join(_notes(group)), style=NOTICE_STYLE))


def _span(first: str, last: str) -> str:
    """The name of a layer, or of layers with consecutive numbers."""
    if first in ("", last):
        return layer_text(first) if first else ""
    return f"{first}-{last.rpartition('.')[2]}"


def _type_cell(change: LayerChange) -> Cell:
    a, b = change.types
    if a and b and a != b:
        return Cell(f"{a} to {b}", style="cyan")
    side = 0 if change.change == REMOVED else 1
    cell = type_cell(a or b, change.arguments[side])
    # What changed is in the note.
    return replace(cell, text=a or b, full=a or b) if change.change == CHANGED else cell


def _notes(group: list[LayerChange]) -> list[str]:
    change, notes = group[0], []
    if len(group) > 1:
        notes.append(f"{plural(len(group), 'layer')} like this" if change.change != RENAMED else "")
    elif change.modules > 1:
        notes.append(f"with {plural(change.modules - 1, 'layer')} in it")
    if change.change == CHANGED:
        notes += _argument_notes(change)
        notes += [_tensor_note(*pair) for pair in change.tensors]
    return [*filter(None, notes), *change.details, *([change.reason] if change.reason else [])]


def _argument_notes(change: LayerChange) -> list[str]:
    """The arguments that differ, each with both values; by their place if they have no keyword."""
    if change.types[0] != change.types[1]:
        return []
    both = [split_arguments(" ".join(text.split())) for text in change.arguments]
    if both[0] is None or both[1] is None:
        return ["other arguments"] if change.arguments[0] != change.arguments[1] else []
    a, b = (dict(_argument(n, x) for n, x in enumerate(parts or ()) if x) for parts in both)
    notes = []
    for name in dict.fromkeys((*a, *b)):
        if a.get(name) != b.get(name):
            label = f"{name} " if isinstance(name, str) else ""
            values = a.get(name), b.get(name)
            side = "" if None not in values else f" only in {'A' if values[1] is None else 'B'}"
            notes.append(f"{label}{' to '.join(filter(None, values))}{side}")
    return notes


def _argument(place: int, part: str) -> tuple[str | int, str]:
    name, sign, value = part.partition("=")
    return (name.strip(), value.strip()) if sign and name.isidentifier() else (place, part)


def _tensor_note(a: OwnTensor | None, b: OwnTensor | None) -> str:
    """What differs in a parameter or buffer."""
    if a is None or b is None:
        one = a or b
        assert one is not None
        gone = "only in B" if a is None else "only in A"
        return f"{one.kind} {one.name} {shape_text(one.shape)} {one.dtype} {gone}"
    parts = []
    if a.kind != b.kind:
        parts.append(f"{a.kind} to {b.kind}")
    if a.shape != b.shape:
        parts.append(f"{shape_text(a.shape)} to {shape_text(b.shape)}")
    if a.dtype != b.dtype:
        parts.append(f"{a.dtype} to {b.dtype}")
    if bool(a.tied) != bool(b.tied):
        parts.append(f"tied to {a.tied or b.tied} in {'A' if a.tied else 'B'} alone")
    return f"{b.name} {', '.join(parts)}"


def _sentences(result: StructureDiff) -> list[tuple[str, str]]:
    """The sentences under the table, each with its style."""
    counts = [f"{count_text(n)} {change}" for change, n in result.counts.items() if n]
    in_both = f"{plural(result.matched, 'layer')} in both"
    if counts:
        sentences = [(f"Different layers: {', '.join(counts)}. {in_both}.", ALERT_STYLE)]
    else:
        sentences = [(f"{in_both}: all are the same.", "green")]
    if exported := sum(bool(change.reason) for change in result.changes):
        sentences.append((f"Folded or left out by the exporter: {plural(exported, 'layer')}.", ""))
    sides = ((result.a, "A"), (result.b, "B"))
    sentences += [(_side_text(model, side), "dim") for model, side in sides]
    sentences += [
        (_unknown_text(model, side), NOTICE_STYLE) for model, side in sides if model.format
    ]
    return sentences


def _side_text(model: ComparedModel, side: str) -> str:
    counts = f"{plural(model.modules, 'layer')}, {plural(model.parameters, 'parameter')}"
    return f"{side}: {model.model}, {counts}."


def _unknown_text(model: ComparedModel, side: str) -> str:
    """What a file does not have, and what is therefore not compared."""
    lacks = "the arguments of its layers"
    if model.unknown:
        lacks += f" and the classes of {count_text(model.unknown)} of them"
    return f"{side} is {_FORMATS[model.format]} without {lacks}; these are not compared."


VIEW: View[StructureDiff] = View(structure_lines, json_document("diff"), columns=(*COLUMNS, NOTE))
