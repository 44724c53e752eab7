"""A forward pass that failed: the calls of layers that ran before, as a table or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from hookscope.errors import ForwardError
from hookscope.results.failure import ForwardFailure, LayerCall, TensorInfo
from hookscope.views.text.documents import document, tree_document
from hookscope.views.text.formats import plural
from hookscope.views.text.text_table import Cell, Column, Row, Squeeze, Table, sentence, table_lines
from hookscope.views.text.tree import tree_lines, type_cell

MAX_CALLS = 20  # calls that a terminal shows, unless all are asked for

SQUEEZE: tuple[Squeeze, ...] = (
    ("shorten", "type"),
    ("drop", "dtype"),
    ("drop", "input"),
    ("drop", "type"),
    ("drop", "note"),
)


def failure_lines(
    failure: ForwardFailure, width: int | None, ascii: bool = False, every: bool = False
) -> list[Text]:
    """Return the calls that ran, in the order in which they returned, and the one that failed.

    Args:
        failure: what is known of it.
        width: cells of the terminal, None for a pipe, which gets all calls.
        ascii: draw with ASCII characters alone.
        every: show all calls on a terminal too.
    """
    shown = failure.ran if every or width is None else failure.ran[-MAX_CALLS:]
    rows = [_row(call) for call in shown]
    rows.append(_row(failure.failed, Cell("failed", style="bold red")))
    columns = (
        Column("layer"),
        Column("type"),
        Column("input"),
        Column("output"),
        Column("dtype", dull=True),
    )
    lines: list[Text] = []
    if hidden := len(failure.ran) - len(shown):
        text = f"... and {plural(hidden, 'call')} before; -v shows all"
        lines += sentence(text, width, ascii, "dim")
    lines += table_lines(Table(columns, tuple(rows), SQUEEZE), width, ascii)
    count = plural(len(failure.ran), "call") if failure.ran else "No call"
    which = "" if failure.complete else " of the chosen layers"
    total = f"{count}{which} returned before {failure.where} failed."
    return [*lines, *sentence(total, width, ascii, "bold")]


def _row(call: LayerCall, note: Cell | None = None) -> Row:
    cells = (
        Cell(call.name),
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


def failure_tree(
    error: ForwardError, width: int | None, ascii: bool = False, sources: bool = False
) -> list[Text]:
    """Return the tree of a model with what had run, and the layer that failed marked."""
    return tree_lines(error.tree, width, ascii, sources, failed=error.layer)


def failure_document(command: str, error: ForwardError) -> dict[str, Any]:
    """Return ``failed`` (the sentence), ``hint``, and ``failure`` with all that is known.

    That is ``failed`` (the call), ``ran`` (the calls before it), ``complete`` (whether these are of
    all layers), ``variables``, ``expected``, ``fixes``, ``file``, ``line``, ``function`` and
    ``source``. Of ``tree`` the document has ``model``, ``total`` and ``modules`` as well.
    """
    content = {"failed": error.message, "hint": error.hint, "failure": asdict(error.failure)}
    known = tree_document(error.tree) if error.tree is not None else {}
    return document(command, {**known, **content})
