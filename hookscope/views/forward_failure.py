"""A pass that failed: what had run before it, as a table or in the model's tree."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from hookscope.errors import ForwardError
from hookscope.files.words import plural
from hookscope.results.failure import BackwardFailure, ForwardFailure, LayerCall, TensorInfo
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, make_document
from hookscope.views.module_tree import tree_lines, type_cell
from hookscope.views.text.shared_parts import ALERT_STYLE
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, sentence, table_lines

MAX_CALLS = 20  # calls that a terminal shows, unless all are asked for
COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("input"),
    Column("output"),
    Column("dtype", optional=True),
)
SQUEEZE = (*shorten("type"), *drop("dtype", "input", "type", "note"))


def failure_lines(error: ForwardError, options: TextOptions) -> list[Text]:
    """Return the tree of a failed pass, or the calls that returned, or nothing if unknown."""
    if error.tree is not None:
        return tree_lines(error.tree, options, failed=error.layer)
    if isinstance(error.failure, BackwardFailure):  # its sentences are part of the hint
        return []
    if error.failure.ran or error.failure.complete:
        return _call_lines(error.failure, options)
    return []


def _call_lines(failure: ForwardFailure, options: TextOptions) -> list[Text]:
    shows_all = options.verbose or options.width is None
    shown = failure.ran if shows_all else failure.ran[-MAX_CALLS:]
    rows = [_row(call) for call in shown]
    rows.append(_row(failure.failed, Cell("failed", style=ALERT_STYLE)))
    lines: list[Text] = []
    if hidden := len(failure.ran) - len(shown):
        text = f"... and {plural(hidden, 'call')} before these; -v shows all"
        lines += sentence(text, options, "dim")
    lines += table_lines(Table(COLUMNS, tuple(rows), SQUEEZE), options)
    count = plural(len(failure.ran), "call") if failure.ran else "No calls"
    which = "" if failure.complete else " of the selected layers"
    total = f"{count}{which} returned before {failure.where} failed."
    return [*lines, *sentence(total, options, "bold")]


def _row(call: LayerCall, note: Cell | None = None) -> Row:
    cells = (
        Cell(layer_text(call.name)),
        type_cell(call.type, call.arguments),
        _sizes(call.inputs),
        _sizes(call.outputs),
        _dtypes(call.outputs or call.inputs),
    )
    return Row(cells, note or Cell())


def _sizes(tensors: tuple[TensorInfo, ...]) -> Cell:
    sizes = [tensor.size for tensor in tensors]
    return Cell(" ".join(sizes), full=",".join(sizes))


def _dtypes(tensors: tuple[TensorInfo, ...]) -> Cell:
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in tensors))
    return Cell(" ".join(dtypes), full=",".join(dtypes))


def failure_document(command: str, error: ForwardError) -> dict[str, Any]:
    """Return a failed pass: ``failed`` (the sentence), ``hint``, ``failure`` with all details."""
    content = {"failed": error.message, "hint": error.hint, "failure": asdict(error.failure)}
    tree = error.tree.to_json() if error.tree is not None else {}
    return make_document(command, {**tree, **content})


VIEW: View[ForwardError] = View(failure_lines)
