"""The summary of a capture: its table, whether it was verified, its coverage, the top classes."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.results.records import Record, Recording
from hookscope.specs.record_kinds import ATTENTION
from hookscope.views.text.coverage import coverage_lines
from hookscope.views.text.edits import drift_lines, edit_note, effect_lines, top_change_lines
from hookscope.views.text.lower import blocks, lower, sentence
from hookscope.views.text.marks import not_finite
from hookscope.views.text.records import (
    ORIGIN,
    label_cell,
    missing_rows,
    note_cell,
    number_cell,
    origin_cells,
    places,
    probability_cell,
)
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import count, full, per_cent

NUMBERS = ("mean", "std", "min", "max")
COLUMNS = (*ORIGIN, *(Column(title, right=True) for title in (*NUMBERS, "zeros")))

SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in NUMBERS),
    *(("drop", title) for title in ("type", "dtype", "note", "min", "max", "std")),
    *(("drop", title) for title in ("zeros", "shape")),
    *(("drop", title) for title in ("mean", "what", "call")),
)


def capture_lines(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the whole summary: table, drift, what edits did, verification, coverage, top classes.

    Args:
        capture: what was recorded; statistics are computed here if they have not been before.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    told = [
        *effect_lines(capture, width, ascii),
        *verified_lines(capture, width, ascii),
        *attention_lines(capture, width, ascii),
        *coverage_lines(capture.coverage, width, ascii),
    ]
    moved = top_change_lines(capture.metadata, width, ascii)
    top = moved or top_lines(capture.metadata, width, ascii)
    drift = drift_lines(capture, width, ascii)
    return blocks(capture_table(capture, width, ascii), drift, told, top, width=width)


def capture_table(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return one row for each recorded tensor, in execution order, then what never ran."""
    devices = places(capture.records)
    rows = [
        _row(record, edit_note(record, capture.metadata), devices.get(record.key, ""))
        for record in capture.records
    ]
    rows += missing_rows(capture, len(COLUMNS))
    return lower(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)


def _row(record: Record, edited: str, place: str) -> Row:
    stats = record.stats
    numbers = [number_cell(value) for value in (stats.mean, stats.std, stats.min, stats.max)]
    zeros = (
        Cell(per_cent(stats.zero_share), full=full(stats.zero_share)) if stats.numel else Cell("-")
    )
    quiet = [word for word in (edited or ("" if stats.numel else "empty"), place) if word]
    note = note_cell(record, not_finite(stats), ", ".join(quiet))
    return Row((*origin_cells(record), *numbers, zeros), note)


def verified_lines(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the line that says the output was checked against a run with no hooks, if it was."""
    if not capture.metadata.get("verified"):
        return []
    edited = " but those of the edits" if capture.metadata.get("edits") else ""
    text = f"Verified: the output is bit-equal without hooks{edited}."
    return sentence(text, width, ascii, "green")


def attention_lines(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return how the weights of attention were come by, if they were asked for."""
    found = capture.metadata.get("attention")
    if found is None:
        return []
    hidden = sum(absent.kind == ATTENTION for absent in capture.absent)
    again = [entry for entry in found if "difference" in entry]
    told = []
    if len(found) > len(again):
        told.append(f"{count(len(found) - len(again))} seen in the open")
    if again:
        furthest = max(again, key=lambda entry: float(entry["difference"] / entry["tolerance"]))
        told.append(
            f"{count(len(again))} recomputed, and the outputs that come of them differ from the"
            f" model's by at most {furthest['difference']:.1e} of the largest entry"
            f" ({furthest['tolerance']:.0e} is allowed)"
        )
    if hidden:
        told.append(f"{count(hidden)} out of reach, as the table tells")
    none = "none found in these layers; docs/ops.md tells what is known as attention"
    return sentence(f"Attention: {'; '.join(told) or none}.", width, ascii)


def top_lines(metadata: dict[str, Any], width: int | None, ascii: bool = False) -> list[Text]:
    """Return the most probable classes of each image of the batch, if the model is a classifier."""
    images = metadata.get("top") or []
    if not any(images):
        return []
    words = [str(entry.get("word", "")) for entry in metadata.get("inputs", [])]
    if len(words) != len(images):
        words = [str(n + 1) for n in range(len(images))]
    rows = [
        Row((label_cell(entry), Cell(str(entry["index"])), probability_cell(entry), Cell(word)))
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
