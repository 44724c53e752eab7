"""What the tables of captures and of gradients share: cells, and rows for what does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookscope.files.strict_json import number
from hookscope.results.records import Absent, Record, Recording, Silent
from hookscope.views.text.table import Cell, Column, Row
from hookscope.views.text.text import DIGITS, full, real, shape_text

LOUD = "bold red"
QUIET = "yellow"

ORIGIN = (
    Column("layer"),
    Column("type"),
    Column("what", dull=True),
    Column("call", right=True, dull=True),
    Column("shape"),
    Column("dtype", dull=True),
)


def origin_cells(record: Record) -> tuple[Cell, ...]:
    """Return the cells of the ``ORIGIN`` columns."""
    return (
        Cell(record.module),
        Cell(record.type, style="cyan"),
        Cell(record.what),
        Cell(str(record.call)),
        Cell(shape_text(record.shape)),
        Cell(record.dtype),
    )


def number_cell(value: float | None) -> Cell:
    """Return a number with four digits, three where there is little room, and nine in a pipe."""
    return Cell(real(value), short=real(value, DIGITS - 1), full=full(value))


def label_cell(entry: dict[str, Any]) -> Cell:
    """Return the name of one of a classifier's likeliest classes."""
    return Cell(str(entry.get("label") or f"class {entry['index']}"))


def probability_cell(entry: dict[str, Any]) -> Cell:
    """Return the probability of one of a classifier's likeliest classes."""
    value = number(entry["probability"])
    if value is None or value != value:
        return Cell("NaN!", style=LOUD)
    return Cell(f"{value:.1%}", full=full(value))


def note_cell(record: Record, loud: str = "", quiet: str = "") -> Cell:
    """Return what must not be overlooked about a record, then the module's further names."""
    aliases = f"= {', '.join(record.aliases)}" if record.aliases else ""
    text = ", ".join(part for part in (loud, quiet, aliases) if part)
    return Cell(text, style=LOUD if loud else QUIET if quiet else "magenta")


def places(records: Sequence[Record]) -> dict[str, str]:
    """Return for each key where its tensor was computed; nothing if that is one place for all."""
    if len({record.device for record in records}) < 2:
        return {}
    return {record.key: f"on {record.device}" for record in records}


def missing_rows(capture: Recording, columns: int) -> list[Row]:
    """Return rows for what was asked for and does not exist, and for what never ran.

    They bear their reason in words and no numbers. What never ran comes last.
    """
    rows = [_missing(absent, columns) for absent in capture.absent]
    told = {absent.module for absent in capture.absent}
    rows += [
        _missing(silent, columns) for silent in capture.coverage.silent if silent.module not in told
    ]
    return rows


def _missing(entry: Absent | Silent, columns: int) -> Row:
    cells: Sequence[Cell] = (Cell(entry.module), Cell(entry.type, style="cyan"))
    if isinstance(entry, Absent):
        note = Cell(entry.reason, style=QUIET)
        cells = (*cells, Cell(entry.what), Cell(str(entry.call) if entry.call else ""))
    else:
        note = Cell("never ran", full=f"never ran: {entry.reason}", style=QUIET)
    return Row((*cells, *[Cell()] * (columns - len(cells))), note, gone=True)
