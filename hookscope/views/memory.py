"""The memory of a step as text: a row for each layer, the moment of the peak, and the limit."""

from __future__ import annotations

from rich.text import Text

from hookscope.files.words import (
    bytes_text,
    count_text,
    percent_text,
    plural,
    short_count_text,
)
from hookscope.results.memory import PARTS, STEP, LayerMemory, Memory
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, filed_document
from hookscope.views.text.shared_parts import NOTICE_STYLE, join_names, styled_lines
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table

COLUMNS = (
    Column("layer"),
    Column("type", optional=True),
    Column("parameters", "param", right=True, optional=True),
    Column("buffers", "buf", right=True, optional=True),
    Column("inputs", "in", right=True, optional=True),
    Column("gradients", "grad", right=True, optional=True),
    Column("optimizer", "opt", right=True, optional=True),
    Column("saved", right=True, optional=True),
    Column("temporary", "temp", right=True, optional=True),
    Column("total", right=True),
)
SQUEEZE = (
    *shorten("optimizer", "gradients", "parameters", "temporary", "buffers", "inputs"),
    *drop("type", "buffers", "inputs", "parameters", "temporary", "gradients", "optimizer"),
)
_NAMES = {"optimizer": "optimizer state", "saved": "saved activations", "temporary": "temporaries"}


def memory_lines(result: Memory, options: TextOptions) -> list[Text]:
    """Return the table by layer, and the peak, its parts, the limit and checkpoints in words."""
    rows = tuple(map(_row, result.layers))
    table = result_table(Table(COLUMNS, rows, SQUEEZE, note=""), options)
    parts = [(_peak(result), ""), (_parts(result), "")]
    parts += [
        (text, NOTICE_STYLE) for text in (_limit(result), _checkpoints(result, options)) if text
    ]
    return join_blocks(table, styled_lines(parts, options), options=options)


def _row(layer: LayerMemory) -> Row:
    sizes = [getattr(layer.parts, name) for name in PARTS]
    name = layer_text(layer.name) if layer.name else "(inputs)"
    cells = (_bytes_cell(size) for size in (*sizes, layer.parts.total))
    return Row((Cell(name), Cell(layer.type, style="cyan"), *cells))


def _bytes_cell(size: int) -> Cell:
    return Cell(
        bytes_text(size) if size else "-", short_count_text(size) if size else "-", value=size
    )


def _peak(result: Memory) -> str:
    moment = result.moment
    if not moment.phase or not moment.operator:
        when = "at the beginning"
    elif moment.phase == STEP:
        when = f"in the optimizer's step, at {layer_text(moment.layer)}"
    else:
        when = f"in the {moment.phase} pass of {layer_text(moment.layer)} ({moment.operator})"
    batch = "" if result.batch is None else f" with a batch of {count_text(result.batch)}"
    return f"Peak{batch}: {bytes_text(result.peak)}, {when}."


def _parts(result: Memory) -> str:
    sizes = {name: getattr(result.parts, name) for name in PARTS}
    held = [f"{_NAMES.get(name, name)} {bytes_text(size)}" for name, size in sizes.items() if size]
    return f"It consists of {', '.join(held)}."


def _limit(result: Memory) -> str:
    limit = result.limit
    if limit is None:
        return ""
    needed = bytes_text(limit.next_peak)
    if needed == bytes_text(limit.limit):  # the rounded numbers would say that it fits
        needed = plural(limit.next_peak, "byte")
    if not limit.batch:
        return (
            f"No batch fits {bytes_text(limit.limit)}: {count_text(limit.next_batch)} needs"
            f" {needed}."
        )
    return (
        f"The largest batch within {bytes_text(limit.limit)} is {count_text(limit.batch)}"
        f" ({bytes_text(limit.peak)}); {count_text(limit.next_batch)} needs"
        f" {needed}."
    )


def _checkpoints(result: Memory, options: TextOptions) -> str:
    plan = result.checkpoints
    if plan is None:
        return ""
    batch = "the batch" if result.batch is None else f"the batch of {count_text(result.batch)}"
    if not plan.layers:
        return (
            f"Checkpoints do not make {batch} fit: with all of {plural(plan.tried, 'block')} the"
            f" peak is {bytes_text(plan.peak)}."
        )
    share = percent_text(plan.flops / result.flops) if result.flops else "?"
    return (
        f"For {batch}, checkpoint {join_names(plan.layers, options)}: the peak is then"
        f" {bytes_text(plan.peak)}, for {short_count_text(plan.flops)} FLOPs more ({share} of the"
        " step)."
    )


VIEW: View[Memory] = View(memory_lines, filed_document("memory"), columns=COLUMNS)
