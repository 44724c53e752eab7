"""The summary of an optimizer's step: the loss, the optimizer, one row for each parameter."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.results.records import Record, Recording
from hookscope.specs.record_kinds import PARAM_UPDATE
from hookscope.views.text.capture import drift_lines, edit_note, effect_lines, top_change_lines
from hookscope.views.text.formats import shape_text
from hookscope.views.text.grads import loss_lines
from hookscope.views.text.shared_parts import (
    coverage_lines,
    missing_rows,
    nonfinite_note,
    note_cell,
    number_cell,
)
from hookscope.views.text.text_table import (
    Cell,
    Column,
    Row,
    Squeeze,
    Table,
    join_blocks,
    sentence,
    table_lines,
)

NUMBERS = ("gradient", "update", "weight", "update/weight")
COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("parameter", "param"),
    Column("call", right=True, dull=True),
    Column("shape"),
    Column("dtype", dull=True),
    Column("gradient", "grad", right=True),
    Column("update", right=True),
    Column("weight", right=True),
    Column("update/weight", "ratio", right=True),
)
SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in ("parameter", "weight", "gradient")),
    *(("drop", title) for title in ("type", "dtype", "weight")),
    *(("shorten", title) for title in ("update", "update/weight")),
    *(("drop", title) for title in ("shape", "note", "gradient", "update", "call")),
)


def step_lines(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the whole summary: loss, optimizer, table, drift, what edits did, coverage.

    Args:
        capture: gradients and updates.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    head = loss_lines(capture.metadata, width, ascii)
    head += optimizer_lines(capture.metadata, width, ascii)
    told = effect_lines(capture, width, ascii) + coverage_lines(capture.coverage, width, ascii)
    drift = drift_lines(capture, width, ascii)
    top = top_change_lines(capture.metadata, width, ascii)
    return join_blocks(head, step_table(capture, width, ascii), drift, told, top, width=width)


def optimizer_lines(metadata: dict[str, Any], width: int | None, ascii: bool = False) -> list[Text]:
    """Return the optimizer and its arguments, if there was a step."""
    optimizer = metadata.get("optimizer")
    if not optimizer:
        return []
    # A file keeps no order of arguments, and must show the same line: the rate, then by name.
    named = sorted(optimizer["arguments"].items(), key=lambda item: (item[0] != "lr", item[0]))
    settings = ", ".join(f"{name}={value}" for name, value in named if value is not None)
    return sentence(f"Optimizer {optimizer['class']}: {settings}", width, ascii, "bold")


def step_table(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return one row for each parameter in the order of its gradient, then what has none.

    The numbers are Euclidean norms: of the gradient, of the update, of the weight before the step.
    Gradients that were edited on their way, and what hooks emitted, have rows with a norm alone.
    """
    updates = {
        (r.module, r.what.removesuffix(".update"), r.call): r
        for r in capture.records
        if r.kind == PARAM_UPDATE
    }
    rows = [
        _row(r, updates.get((r.module, r.what.removesuffix(".grad"), r.call)), capture.metadata)
        for r in capture.records
        if r.kind != PARAM_UPDATE
    ]
    rows += missing_rows(capture, len(COLUMNS))
    return table_lines(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)


def _row(record: Record, update: Record | None, metadata: dict[str, Any]) -> Row:
    cells = (
        Cell(record.module),
        Cell(record.type, style="cyan"),
        Cell(record.what.removesuffix(".grad") if update else record.what),
        Cell(str(record.call)),
        Cell(shape_text(record.shape)),
        Cell(record.dtype),
    )
    numbers = [number_cell(record.stats.norm), Cell(), Cell(), Cell()]
    if update:
        ratio = (update.stats.norm, record.weight_norm, update.ratio)
        numbers[1:] = [number_cell(value) for value in ratio]
    loud = [word for one in (record, update) if one and (word := nonfinite_note(one.stats))]
    note = note_cell(record, ", ".join(loud[:1]), edit_note(record, metadata))
    return Row((*cells, *numbers), note)
