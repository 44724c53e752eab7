"""The summary of a trace: what fired, in order, indented by what it ran within."""

from __future__ import annotations

from rich.text import Text

from hookscope.results.trace import BACKWARD, FORWARD, Event, Trace
from hookscope.views.text.coverage import coverage_lines
from hookscope.views.text.grads import loss_lines
from hookscope.views.text.lower import blocks, lower, sentence
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import count, full, plural, real, shape_text, size

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
    return blocks(loss, lower(table, width, ascii), told, width=width)


def _row(event: Event) -> Row:
    indent = INDENT * event.depth
    shapes = [shape_text(shape) for shape in event.outputs]
    cells = (
        Cell(event.module, full=indent + event.module),
        Cell(event.direction, style="magenta" if event.direction == BACKWARD else ""),
        Cell(event.type, style="cyan"),
        Cell(str(event.call)),
        Cell(" ".join(shapes), full=",".join(shapes)),
        Cell(count(event.bytes), short=size(event.bytes), full=str(event.bytes)),
        _milliseconds(event.time),
        _milliseconds(event.own),
    )
    return Row(cells, guide=indent, hang=indent)


def _milliseconds(value: float) -> Cell:
    return Cell(f"{value:.3f}", short=real(value, 2), full=full(round(value, 6)))


def _totals(trace: Trace) -> str:
    parts = []
    for direction in (FORWARD, BACKWARD):
        number = sum(1 for event in trace.events if event.direction == direction)
        if number:
            parts.append(f"{direction} {plural(number, 'call')}, {trace.total(direction):.1f} ms")
    told = "; ".join(parts) or "no call"
    return f"Fired: {told} (one run by the wall clock, the hooks' own time taken out)."
