"""A trace as text: the calls in order, each indented below the module that made it."""

from __future__ import annotations

from rich.text import Text

from hookscope.files.words import bytes_text, count_text, number_text, plural, shape_text
from hookscope.results.trace_events import BACKWARD, FORWARD, Trace, TraceEvent
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, json_document
from hookscope.views.grads import loss_lines
from hookscope.views.text.shared_parts import count_cell, coverage_lines
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

COLUMNS = (
    Column("layer"),
    Column("pass", optional=True),
    Column("type"),
    Column("call", right=True, optional=True),
    Column("shape"),
    Column("bytes", right=True),
    Column("ms", right=True),
    Column("own", right=True),
)
SQUEEZE = (
    *shorten("bytes", "ms", "own"),
    *drop("type", "own", "bytes", "call", "shape", "pass", "ms"),
)
INDENT = "  "


def trace_lines(trace: Trace, options: TextOptions) -> list[Text]:
    """Return the whole summary: the loss, the calls, how long they took, coverage."""
    table = Table(COLUMNS, tuple(map(_row, trace.events)), SQUEEZE, note="")
    notes = [
        *sentence(_totals(trace), options, "bold"),
        *coverage_lines(trace.coverage, options),
    ]
    loss = loss_lines(trace.metadata, options)
    return join_blocks(loss, result_table(table, options), notes, options=options)


def _row(event: TraceEvent) -> Row:
    indent = INDENT * event.depth
    name = layer_text(event.module)
    shapes = [shape_text(shape) for shape in event.outputs]
    cells = (
        Cell(name, full=indent + name),
        Cell(event.direction, style="magenta" if event.direction == BACKWARD else ""),
        Cell(event.type, style="cyan"),
        count_cell(event.call),
        Cell(" ".join(shapes), full=",".join(shapes)),
        Cell(count_text(event.bytes), short=bytes_text(event.bytes), value=event.bytes),
        _milliseconds_cell(event.time),
        _milliseconds_cell(event.own),
    )
    return Row(cells, guide=indent, continuation=indent)


def _milliseconds_cell(value: float) -> Cell:
    short = f"{value:.0f}" if value >= 99.5 else number_text(value, 2)  # never 2.9e+02
    return Cell(f"{value:.3f}", short=short, value=round(value, 6))


def _totals(trace: Trace) -> str:
    parts = []
    for direction in (FORWARD, BACKWARD):
        number = sum(1 for event in trace.events if event.direction == direction)
        if number:
            parts.append(f"{direction} {plural(number, 'call')}, {trace.total(direction):.1f} ms")
    calls = "; ".join(parts) or "no calls"
    return f"{calls[0].upper()}{calls[1:]} (wall-clock time of one run, without the hooks)."


VIEW: View[Trace] = View(trace_lines, json_document("trace"), columns=COLUMNS)
