"""An optimizer's step as text: the loss, the optimizer, one row for each parameter."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.files.words import shape_text
from hookscope.results.records import Record, Recording
from hookscope.specs.patterns import layer_text
from hookscope.specs.tensor_key import PARAM_UPDATE
from hookscope.views.capture import capture_document, drift_lines, edit_note, effect_lines
from hookscope.views.display import View
from hookscope.views.grads import failure_lines, loss_lines
from hookscope.views.text.shared_parts import (
    count_cell,
    coverage_lines,
    missing_rows,
    nonfinite_note,
    note_cell,
    number_cell,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence
from hookscope.views.text.tokens import change_lines, prompt_lines

COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("parameter", "param"),
    Column("call", right=True, optional=True),
    Column("shape"),
    Column("dtype", optional=True),
    Column("gradient", "grad", right=True),
    Column("update", right=True),
    Column("weight", right=True),
    Column("update/weight", "ratio", right=True),
)
SQUEEZE = (
    *shorten("parameter", "weight", "gradient"),
    *drop("type", "dtype", "weight"),
    *shorten("update", "update/weight"),
    *drop("shape", "note", "gradient", "update", "call"),
)


def step_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return the whole summary: loss, optimizer, table, drift, what edits did, coverage."""
    head = prompt_lines(capture.metadata, options) + loss_lines(capture.metadata, options)
    head += optimizer_lines(capture.metadata, options)
    notes = failure_lines(capture.metadata, options) + effect_lines(capture, options)
    notes += coverage_lines(capture.coverage, options)
    drift = drift_lines(capture, options)
    top = change_lines("top", capture.metadata, options)
    top += change_lines("next_tokens", capture.metadata, options)
    return join_blocks(head, step_table(capture, options), drift, notes, top, options=options)


def optimizer_lines(metadata: dict[str, Any], options: TextOptions) -> list[Text]:
    """Return the optimizer and its arguments, if there was a step."""
    optimizer = metadata.get("optimizer")
    if not optimizer:
        return []
    # A file does not keep the order of arguments: the learning rate comes first, then by name.
    named = sorted(optimizer["arguments"].items(), key=lambda item: (item[0] != "lr", item[0]))
    settings = ", ".join(f"{name}={value}" for name, value in named if value is not None)
    return sentence(f"Optimizer {optimizer['class']}: {settings}", options, "bold")


def step_table(capture: Recording, options: TextOptions) -> list[Text]:
    """Return the norms of each gradient, its update and the weight before, then what is missing."""
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
    return result_table(Table(COLUMNS, tuple(rows), SQUEEZE), options)


def _row(record: Record, update: Record | None, metadata: dict[str, Any]) -> Row:
    cells = (
        Cell(layer_text(record.module)),
        Cell(record.type, style="cyan"),
        Cell(record.what.removesuffix(".grad") if update else record.what),
        count_cell(record.call),
        Cell(shape_text(record.shape)),
        Cell(record.dtype),
    )
    numbers = [number_cell(record.stats.norm), Cell(), Cell(), Cell()]
    if update:
        values = (update.stats.norm, record.weight_norm, update.ratio)
        numbers[1:] = [number_cell(value) for value in values]
    alert = nonfinite_note(record.stats) or (nonfinite_note(update.stats) if update else "")
    note = note_cell(record, alert, edit_note(record, metadata))
    return Row((*cells, *numbers), note)


VIEW: View[Recording] = View(step_lines, capture_document, columns=(*COLUMNS, NOTE))
