"""The fingerprint of a model as text: a row for each output."""

from __future__ import annotations

from rich.text import Text

from hookscope.files.words import count_text, plural, shape_text
from hookscope.results.fingerprint import ASSUMED, FingerprintEntry, ModelFingerprint
from hookscope.views.display import View, filed_document
from hookscope.views.text.shared_parts import ALERT_STYLE, NOTICE_STYLE, number_cell
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

COLUMNS = (
    Column("tensor"),
    Column("type"),
    Column("shape"),
    Column("mean", right=True),
    Column("std", right=True),
    Column("min", right=True),
    Column("max", right=True),
    Column("rounding", right=True),
    Column("hash"),
)
SQUEEZE = (
    *shorten("mean", "std", "min", "max", "rounding"),
    *drop("note", "hash", "min", "max", "type", "mean", "shape"),
)


def fingerprint_lines(result: ModelFingerprint, options: TextOptions) -> list[Text]:
    """Return the table of outputs, and how their rounding was measured."""
    table = result_table(Table(COLUMNS, tuple(map(_row, result.outputs)), SQUEEZE), options)
    return join_blocks(table, _rounding_lines(result, options), options=options)


def _row(entry: FingerprintEntry) -> Row:
    cells = (
        Cell(entry.key),
        Cell(entry.type, style="cyan"),
        Cell(shape_text(entry.shape)),
        *map(number_cell, (entry.mean, entry.std, entry.min, entry.max, entry.rounding)),
        Cell(entry.digest),
    )
    if entry.nonfinite:
        note = f"{count_text(entry.nonfinite)} entries are not finite"
        return Row(cells, Cell(note, style=ALERT_STYLE))
    return Row(cells, Cell(f"= {entry.source}" if entry.source else "", style="magenta"))


def _rounding_lines(result: ModelFingerprint, options: TextOptions) -> list[Text]:
    count = plural(len(result.outputs), "output")
    runs = result.metadata.get("rounding") or []
    if not runs:
        text = f"{count}. The model runs neither in float64 nor with other kernels, so the rounding"
        return sentence(f"{text} is that of the dtype alone.", options, NOTICE_STYLE)
    if runs == [ASSUMED]:
        text = f"{count} in one step of a training. How much of it is rounding was not measured."
        return sentence(text, options)
    return sentence(f"{count}. Rounding from a run {' and one '.join(runs)}.", options)


VIEW: View[ModelFingerprint] = View(
    fingerprint_lines, filed_document("fingerprint"), columns=(*COLUMNS, NOTE)
)
