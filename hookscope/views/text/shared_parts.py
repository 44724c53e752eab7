"""What the tables of captures and of gradients share: cells, and rows for what does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.results.gradient_flow import DEFAULT_LIMITS, EXPLODING, SPREAD, VANISHING
from hookscope.results.records import Absent, Coverage, Record, Recording, UnexecutedModule
from hookscope.specs.record_kinds import PARAM_GRAD
from hookscope.views.text.formats import (
    DIGITS,
    count_text,
    full_text,
    number_text,
    plural,
    shape_text,
)
from hookscope.views.text.text_table import Cell, Column, Row, sentence

if TYPE_CHECKING:
    from hookscope.results.stats import Stats

ALERT_STYLE = "bold red"

NOTICE_STYLE = "yellow"

ORIGIN_COLUMNS = (
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
    return Cell(number_text(value), short=number_text(value, DIGITS - 1), full=full_text(value))


def label_cell(entry: dict[str, Any]) -> Cell:
    """Return the name of one of a classifier's likeliest classes."""
    return Cell(str(entry.get("label") or f"class {entry['index']}"))


def probability_cell(entry: dict[str, Any]) -> Cell:
    """Return the probability of one of a classifier's likeliest classes."""
    value = parse_number(entry["probability"])
    if value is None or value != value:
        return Cell("NaN!", style=ALERT_STYLE)
    return Cell(f"{value:.1%}", full=full_text(value))


def note_cell(record: Record, loud: str = "", quiet: str = "") -> Cell:
    """Return what must not be overlooked about a record, then the module's further names."""
    aliases = f"= {', '.join(record.aliases)}" if record.aliases else ""
    text = ", ".join(part for part in (loud, quiet, aliases) if part)
    return Cell(text, style=ALERT_STYLE if loud else NOTICE_STYLE if quiet else "magenta")


def device_notes(records: Sequence[Record]) -> dict[str, str]:
    """Return for each key where its tensor was computed; nothing if that is one place for all."""
    if len({record.device for record in records}) < 2:
        return {}
    return {record.key: f"on {record.device}" for record in records}


def missing_rows(capture: Recording, columns: int) -> list[Row]:
    """Return rows for what was asked for and does not exist, and for what never ran.

    They bear their reason in words and no numbers. What never ran comes last.
    """
    rows = [_missing_row(absent, columns) for absent in capture.absent]
    told = {absent.module for absent in capture.absent}
    rows += [
        _missing_row(not_executed, columns)
        for not_executed in capture.coverage.not_executed
        if not_executed.module not in told
    ]
    return rows


def _missing_row(entry: Absent | UnexecutedModule, columns: int) -> Row:
    cells: Sequence[Cell] = (Cell(entry.module), Cell(entry.type, style="cyan"))
    if isinstance(entry, Absent):
        note = Cell(entry.reason, style=NOTICE_STYLE)
        cells = (*cells, Cell(entry.what), Cell(str(entry.call) if entry.call else ""))
    else:
        note = Cell("never ran", full=f"never ran: {entry.reason}", style=NOTICE_STYLE)
    return Row((*cells, *[Cell()] * (columns - len(cells))), note, gone=True)


GRADIENT_LEGEND = (
    f"{VANISHING}: the norm is under {DEFAULT_LIMITS.floor:g}, or under 1/{1 / DEFAULT_LIMITS.vanishing:,.0f} "
    f"(parameters: 1/{SPREAD[PARAM_GRAD] / DEFAULT_LIMITS.vanishing:,.0f}) of the first of its kind, nearest"
    f" to the loss; {EXPLODING}: as many times larger, or an entry over {DEFAULT_LIMITS.ceiling:,.0f}."
)


def nonfinite_note(stats: Stats) -> str:
    """Return the loud words for NaN and infinite entries, empty where there are none.

    Example:
        >>> from hookscope.results.stats import Stats
        >>> nonfinite_note(Stats(4, 0.0, 0.0, 0.0, 0.0, 0.0, 2, nan=1, inf=1))
        'NaN! 1 of 4, Inf! 1 of 4'
    """
    found = (("NaN!", stats.nan), ("Inf!", stats.inf))
    return ", ".join(
        f"{word} {count_text(n)} of {count_text(stats.numel)}" for word, n in found if n
    )


MAX_NAMES = 3  # names given for one cause on a terminal; a pipe gets all of them


def coverage_lines(coverage: Coverage, width: int | None, ascii: bool = False) -> list[Text]:
    """Return what matched, ran (and how often), and never ran, grouped by likely cause.

    Args:
        coverage: which modules ran.
        width: cells of the terminal, None for a pipe; a pipe names every layer.
        ascii: write everything outside ASCII as an escape.
    """
    some = None if width is None else MAX_NAMES
    again = [f"{f.module} x{f.calls}" for f in coverage.executed if f.calls > 1]
    text = f"{plural(coverage.matched, 'layer')} matched, {count_text(len(coverage.executed))} ran"
    if again:
        text += f" ({count_text(len(again))} of them more than once: {join_names(again, some)})"
    lines = sentence(text + ".", width, ascii)
    causes: dict[str, list[str]] = {}
    for not_executed in coverage.not_executed:
        causes.setdefault(not_executed.reason, []).append(not_executed.module)
    for cause, names in causes.items():
        lines += sentence(
            f"Never ran: {join_names(names, some)} ({cause}).", width, ascii, "yellow"
        )
    left_out = some is not None and max([len(again), *map(len, causes.values())]) > MAX_NAMES
    return lines + (sentence("--json has all names.", width, ascii, "dim") if left_out else [])


def join_names(names: Sequence[str], some: int | None) -> str:
    """Return the names with commas between; on a terminal the first ``some`` and a count."""
    if some is None or len(names) <= some:
        return ", ".join(names)
    return f"{', '.join(names[:some])} and {count_text(len(names) - some)} more"
