"""The summary of a trace: what fired, in order, indented by what it ran within."""

from __future__ import annotations

from rich.text import Text

from hookscope.results.trace_events import BACKWARD, FORWARD, Trace, TraceEvent
from hookscope.views.text.formats import (
    bytes_text,
    count_text,
    full_text,
    number_text,
    plural,
    shape_text,
)
from hookscope.views.text.grads import loss_lines
from hookscope.views.text.shared_parts import coverage_lines
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

COLUMNS = (
    Column("layer"),
    Column("pass", dull=True),
    Column("type"),
    Column("call", right=True, dull=True),
    Column("shape"),
    Column("bytes", right=True),
    Column("ms", right=True),
    Column("own", right=True),
)
SQUEEZE: tuple[Squeeze, ...] = (
    ("shorten", "bytes"),
    *(("shorten", title) for title in ("ms", "own")),
    *(("drop", title) for title in ("type", "own", "bytes", "call", "shape", "pass", "ms")),
)
INDENT = "  "


def trace_lines(trace: Trace, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the whole summary: the loss, what fired, how long it took, coverage.

    Args:
        trace: what fired.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    table = Table(COLUMNS, tuple(map(_row, trace.events)), SQUEEZE, note="")
    told = [
        *sentence(_totals(trace), width, ascii, "bold"),
        *coverage_lines(trace.coverage, width, ascii),
    ]
    loss = loss_lines(trace.metadata, width, ascii)
    return join_blocks(loss, table_lines(table, width, ascii), told, width=width)


def _row(event: TraceEvent) -> Row:
    indent = INDENT * event.depth
    shapes = [shape_text(shape) for shape in event.outputs]
    cells = (
        Cell(event.module, full=indent + event.module),
        Cell(event.direction, style="magenta" if event.direction == BACKWARD else ""),
        Cell(event.type, style="cyan"),
        Cell(str(event.call)),
        Cell(" ".join(shapes), full=",".join(shapes)),
        Cell(count_text(event.bytes), short=bytes_text(event.bytes), full=str(event.bytes)),
        _milliseconds(event.time),
        _milliseconds(event.own),
    )
    return Row(cells, guide=indent, hang=indent)


def _milliseconds(value: float) -> Cell:
    return Cell(f"{value:.3f}", short=number_text(value, 2), full=full_text(round(value, 6)))


def _totals(trace: Trace) -> str:
    parts = []
    for direction in (FORWARD, BACKWARD):
        number = sum(1 for event in trace.events if event.direction == direction)
        if number:
            parts.append(f"{direction} {plural(number, 'call')}, {trace.total(direction):.1f} ms")
    told = "; ".join(parts) or "no call"
    return f"Fired: {told} (one run by the wall clock, the hooks' own time taken out)."
