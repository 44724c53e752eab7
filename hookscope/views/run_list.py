"""The training runs in a folder, as a table."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.escapes import visible
from hookscope.files.words import count_text
from hookscope.stores.runs.run_list import ListedRun, RunList
from hookscope.views.display import View, make_document
from hookscope.views.text.shared_parts import ALERT_STYLE, number_cell
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, result_table

COLUMNS = (
    Column("run"),
    Column("status"),
    Column("steps", right=True),
    Column("first loss", "first", right=True),
    Column("last loss", "last", right=True),
    Column("least loss", "least", right=True),
    Column("seconds", "s", right=True),
    Column("started"),
    Column("script"),
)
SQUEEZE = (
    *drop("started", "seconds"),
    *shorten("first loss", "last loss", "least loss"),
    *drop("script", "least loss", "first loss", "status", "steps"),
)


def run_list_lines(result: RunList, options: TextOptions) -> list[Text]:
    """Return a row for each run; one that cannot be read has the reason as its note."""
    return result_table(Table(COLUMNS, tuple(map(_row, result.runs)), SQUEEZE), options)


def _row(run: ListedRun) -> Row:
    if run.error:
        cells = [Cell(visible(run.name)), *[Cell("-")] * (len(COLUMNS) - 1)]
        return Row(tuple(cells), Cell(run.error, style=ALERT_STYLE))
    losses = (run.first_loss, run.last_loss, run.least_loss)
    cells = [
        Cell(visible(run.name)),
        Cell(run.status, style="" if run.status == "finished" else ALERT_STYLE),
        Cell(count_text(run.steps), value=run.steps),
        *(Cell("-") if loss is None else number_cell(loss) for loss in losses),
        number_cell(run.seconds),
        Cell(run.started),
        Cell(visible(run.script)),
    ]
    return Row(tuple(cells))


def run_list_document(result: RunList) -> dict[str, Any]:
    """Return the runs of a folder: what describes a file of tensors as null, then ``runs``."""
    single = {"file": str(result.folder), "recording": None, "tensors": None}
    return make_document("show", {**single, **result.to_json()})


VIEW: View[RunList] = View(run_list_lines, lambda runs, file: run_list_document(runs))
