"""A trace as text and as a page: the calls in order, or the time of each layer."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from hookscope.files.words import bytes_text, count_text, number_text, plural, shape_text
from hookscope.results.layer_times import LayerTime, Timing
from hookscope.results.trace import Trace
from hookscope.results.trace_events import BACKWARD, FORWARD, TraceEvent
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, json_document
from hookscope.views.grads import loss_lines
from hookscope.views.html.analysis_page import AnalysisPage, PageDrawing, PageMap
from hookscope.views.html.flame_graph import flame_graph
from hookscope.views.images.figures.drawing import recording_caption
from hookscope.views.text.shared_parts import count_cell, coverage_lines, share_cell
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
TIME_COLUMNS = (
    Column("layer"),
    Column("pass", optional=True),
    Column("type"),
    Column("calls", right=True, optional=True, about="in one run"),
    Column("time", right=True, about="median in milliseconds, with the layers inside"),
    Column("spread", right=True, about="interquartile range of the time over the runs"),
    Column("share", right=True, about="of the time of the whole model"),
    Column(
        "own", right=True, about="median in milliseconds, without the layers inside, listed or not"
    ),
    Column("own spread", right=True, about="interquartile range of the own time"),
    Column("own share", right=True, about="of the time of the whole model"),
)
TIME_SQUEEZE = (
    *drop("own spread", "type"),
    *shorten("time", "spread", "own"),
    *drop("calls", "own share", "spread", "own", "share", "pass"),
)


def trace_lines(trace: Trace, options: TextOptions) -> list[Text]:
    """Return the whole summary: the loss, the calls or layers, their times, coverage."""
    notes = [
        *(line for text in _meanings(trace) for line in sentence(text, options, "bold")),
        *coverage_lines(trace.coverage, options),
    ]
    loss = loss_lines(trace.metadata, options)
    return join_blocks(loss, result_table(_table(trace), options), notes, options=options)


def _table(trace: Trace) -> Table:
    if trace.times is None:
        return Table(COLUMNS, tuple(map(_row, trace.events)), SQUEEZE, note="")
    return Table(TIME_COLUMNS, tuple(map(_time_row, trace.times.layers)), TIME_SQUEEZE, note="")


def _meanings(trace: Trace) -> list[str]:
    """What the numbers are, in sentences."""
    times = trace.times
    if times is None:
        return [f"{_totals(trace)} (wall-clock time of one run, without the hooks)."]
    hooks = " and ".join(
        f"{number_text(cost.total * 1000, 2)} us for each {way} call"
        for way, cost in times.hooks.items()
    )
    warmup = plural(times.warmup, "warm-up run")
    return [
        f"{_totals(trace)}: medians of {plural(times.repeat, 'run')} after {warmup}, in ms; the"
        " spread is the interquartile range.",
        f"The hooks took {hooks}; this is subtracted.",
    ]


def _row(event: TraceEvent) -> Row:
    indent = INDENT * event.depth
    name = layer_text(event.module)
    shapes = [shape_text(shape) for shape in event.outputs]
    cells = (
        Cell(name, full=indent + name),
        _pass_cell(event.direction),
        Cell(event.type, style="cyan"),
        count_cell(event.call),
        Cell(" ".join(shapes), full=",".join(shapes)),
        Cell(count_text(event.bytes), short=bytes_text(event.bytes), value=event.bytes),
        _milliseconds_cell(event.time),
        _milliseconds_cell(event.own),
    )
    return Row(cells, guide=indent, continuation=indent)


def _time_row(layer: LayerTime) -> Row:
    return Row.of(
        Cell(layer_text(layer.module)),
        _pass_cell(layer.direction),
        Cell(layer.type, style="cyan"),
        count_cell(layer.calls),
        *_timing_cells(layer.time, layer.share),
        *_timing_cells(layer.own, layer.own_share),
    )


def _timing_cells(time: Timing, share: float | None) -> tuple[Cell, Cell, Cell]:
    spread = Cell() if time.spread is None else _milliseconds_cell(time.spread)
    return _milliseconds_cell(time.median), spread, Cell() if share is None else share_cell(share)


def _pass_cell(direction: str) -> Cell:
    return Cell(direction, style="magenta" if direction == BACKWARD else "")


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
    return f"{calls[0].upper()}{calls[1:]}"


def write_trace_page(trace: Trace, path: Path) -> int:
    """Write the page of a trace, with flame graphs and the table; return its size in bytes."""
    table = _table(trace)
    flames = [
        PageDrawing(f"{way.capitalize()} pass", "flame", flame_graph(way, events))
        for way in (FORWARD, BACKWARD)
        if (events := [event for event in trace.events if event.direction == way])
    ]
    numbers = PageMap.of_table("Calls" if trace.times is None else "Layers", table)
    loss = [line.plain for line in loss_lines(trace.metadata, TextOptions())]
    page = AnalysisPage(
        "Time of each layer",
        recording_caption(trace.metadata),
        (*loss, *_meanings(trace)),
        (),
        (*flames, numbers),
    )
    return page.write(path)


VIEW: View[Trace] = View(
    trace_lines, json_document("trace"), write_trace_page, columns=(*COLUMNS, *TIME_COLUMNS)
)
