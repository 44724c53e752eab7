"""The summary of a capture: its table, whether it was verified, its coverage, the top classes."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.records import Capture, Record
from hookscope.render.coverage import coverage_lines
from hookscope.render.lower import blocks, lower, sentence
from hookscope.render.marks import not_finite
from hookscope.render.records import (
    LOUD,
    ORIGIN,
    missing_rows,
    note_cell,
    number_cell,
    origin_cells,
)
from hookscope.render.table import Cell, Column, Row, Squeeze, Table
from hookscope.render.text import full, per_cent
from hookscope.strict_json import number

NUMBERS = ("mean", "std", "min", "max")
COLUMNS = (*ORIGIN, *(Column(title, right=True) for title in (*NUMBERS, "zeros")))

SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in NUMBERS),
    *(("drop", title) for title in ("type", "dtype", "note", "min", "max", "std")),
    *(("drop", title) for title in ("zeros", "shape")),
    *(("drop", title) for title in ("mean", "what", "call")),
)


def capture_lines(capture: Capture, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the whole summary: table, verification, coverage, top classes.

    Args:
        capture: what was recorded; statistics are computed here if they have not been before.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    told = verified_lines(capture, width, ascii) + coverage_lines(capture.coverage, width, ascii)
    top = top_lines(capture.metadata, width, ascii)
    return blocks(capture_table(capture, width, ascii), told, top, width=width)


def capture_table(capture: Capture, width: int | None, ascii: bool = False) -> list[Text]:
    """Return one row for each recorded tensor, in execution order, then what never ran."""
    rows = [_row(record) for record in capture.records]
    rows += missing_rows(capture, len(COLUMNS))
    return lower(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)


def _row(record: Record) -> Row:
    stats = record.stats
    numbers = [number_cell(value) for value in (stats.mean, stats.std, stats.min, stats.max)]
    zeros = (
        Cell(per_cent(stats.zero_share), full=full(stats.zero_share)) if stats.numel else Cell("-")
    )
    note = note_cell(record, not_finite(stats), "" if stats.numel else "empty")
    return Row((*origin_cells(record), *numbers, zeros), note)


def verified_lines(capture: Capture, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the line that says the output was checked against a run with no hooks, if it was."""
    if not capture.metadata.get("verified"):
        return []
    return sentence("Verified: the output is bit-equal without hooks.", width, ascii, "green")


def top_lines(metadata: dict[str, Any], width: int | None, ascii: bool = False) -> list[Text]:
    """Return the most probable classes of each image of the batch, if the model is a classifier."""
    images = metadata.get("top") or []
    if not any(images):
        return []
    words = [str(entry.get("word", "")) for entry in metadata.get("inputs", [])]
    if len(words) != len(images):
        words = [str(n + 1) for n in range(len(images))]
    rows = [
        Row((Cell(_label(entry)), Cell(str(entry["index"])), _probability(entry), Cell(word)))
        for word, entries in zip(words, images, strict=True)
        for entry in entries
    ]
    columns = (
        Column(f"top {max(map(len, images))}"),
        Column("class", right=True),
        Column("probability", short="prob", right=True),
        Column("input", dull=True),
    )
    squeeze: tuple[Squeeze, ...] = (("drop", "class"), ("shorten", "probability"))
    return lower(Table(columns, tuple(rows), squeeze, note=""), width, ascii)


def _label(entry: dict[str, Any]) -> str:
    return str(entry.get("label") or f"class {entry['index']}")


def _probability(entry: dict[str, Any]) -> Cell:
    value = number(entry["probability"])
    if value is None or value != value:
        return Cell("NaN!", style=LOUD)
    return Cell(f"{value:.1%}", full=full(value))
