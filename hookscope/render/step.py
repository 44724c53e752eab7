"""The summary of an optimizer's step: the loss, the optimizer, one row for each parameter."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.kinds import PARAM_GRAD, PARAM_UPDATE
from hookscope.records import Capture, Record
from hookscope.render.coverage import coverage_lines
from hookscope.render.grads import loss_lines
from hookscope.render.lower import blocks, lower, sentence
from hookscope.render.marks import not_finite
from hookscope.render.records import missing_rows, note_cell, number_cell
from hookscope.render.table import Cell, Column, Row, Squeeze, Table
from hookscope.render.text import shape_text

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


def step_lines(capture: Capture, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the whole summary: loss, optimizer, table, coverage.

    Args:
        capture: gradients and updates.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    head = loss_lines(capture.metadata, width, ascii)
    head += _optimizer_lines(capture.metadata.get("optimizer"), width, ascii)
    told = coverage_lines(capture.coverage, width, ascii)
    return blocks(head, step_table(capture, width, ascii), told, width=width)


def _optimizer_lines(
    optimizer: dict[str, Any] | None, width: int | None, ascii: bool
) -> list[Text]:
    if not optimizer:
        return []
    settings = ", ".join(f"{k}={v}" for k, v in optimizer["arguments"].items() if v is not None)
    return sentence(f"Optimizer {optimizer['class']}: {settings}", width, ascii, "bold")


def step_table(capture: Capture, width: int | None, ascii: bool = False) -> list[Text]:
    """Return one row for each parameter in the order of its gradient, then what has none.

    The numbers are Euclidean norms: of the gradient, of the update, of the weight before the step.
    """
    updates = {
        (r.module, r.what.removesuffix(".update"), r.call): r
        for r in capture.records
        if r.kind == PARAM_UPDATE
    }
    gradients = [r for r in capture.records if r.kind == PARAM_GRAD]
    rows = [_row(r, updates[r.module, r.what.removesuffix(".grad"), r.call]) for r in gradients]
    rows += missing_rows(capture, len(COLUMNS))
    return lower(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)


def _row(gradient: Record, update: Record) -> Row:
    cells = (
        Cell(gradient.module),
        Cell(gradient.type, style="cyan"),
        Cell(gradient.what.removesuffix(".grad")),
        Cell(str(gradient.call)),
        Cell(shape_text(gradient.shape)),
        Cell(gradient.dtype),
    )
    norms = (gradient.stats.norm, update.stats.norm, gradient.weight_norm, update.ratio)
    loud = [word for record in (gradient, update) if (word := not_finite(record.stats))]
    return Row((*cells, *map(number_cell, norms)), note_cell(gradient, ", ".join(loud[:1])))
