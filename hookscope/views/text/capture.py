"""The summary of a capture: its table, whether it was verified, its coverage, the top classes."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.results.records import Record, Recording
from hookscope.specs.record_kinds import ATTENTION
from hookscope.views.text.formats import count_text, full_text, number_text, percent_text
from hookscope.views.text.shared_parts import (
    NOTICE_STYLE,
    ORIGIN_COLUMNS,
    coverage_lines,
    device_notes,
    label_cell,
    missing_rows,
    nonfinite_note,
    note_cell,
    number_cell,
    origin_cells,
    probability_cell,
)
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

NUMBERS = ("mean", "std", "min", "max")

COLUMNS = (*ORIGIN_COLUMNS, *(Column(title, right=True) for title in (*NUMBERS, "zeros")))

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
    return join_blocks(capture_table(capture, width, ascii), drift, told, top, width=width)


def capture_table(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return one row for each recorded tensor, in execution order, then what never ran."""
    devices = device_notes(capture.records)
    rows = [
        _capture_row(record, edit_note(record, capture.metadata), devices.get(record.key, ""))
        for record in capture.records
    ]
    rows += missing_rows(capture, len(COLUMNS))
    return table_lines(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)


def _capture_row(record: Record, edited: str, place: str) -> Row:
    stats = record.stats
    numbers = [number_cell(value) for value in (stats.mean, stats.std, stats.min, stats.max)]
    zeros = (
        Cell(percent_text(stats.zero_share), full=full_text(stats.zero_share))
        if stats.numel
        else Cell("-")
    )
    quiet = [word for word in (edited or ("" if stats.numel else "empty"), place) if word]
    note = note_cell(record, nonfinite_note(stats), ", ".join(quiet))
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
        told.append(f"{count_text(len(found) - len(again))} seen in the open")
    if again:
        furthest = max(again, key=lambda entry: float(entry["difference"] / entry["tolerance"]))
        told.append(
            f"{count_text(len(again))} recomputed, and the outputs that come of them differ from the"
            f" model's by at most {furthest['difference']:.1e} of the largest entry"
            f" ({furthest['tolerance']:.0e} is allowed)"
        )
    if hidden:
        told.append(f"{count_text(hidden)} out of reach, as the table tells")
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
    return table_lines(Table(columns, tuple(rows), squeeze, note=""), width, ascii)


_CHANNELS = re.compile(r"\[[\d,\s-]*\]$")


def edit_note(record: Record, metadata: dict[str, Any]) -> str:
    """Return ``edited: scale:0.5`` for a tensor that edits changed, empty for any other.

    Where only some channels were meant they stand behind it: ``edited: zero [3,7]``.

    Example:
        >>> import hookscope, torch
        >>> told = {"edits": [{"edit": "fc=scale:0.5", "changed": ["fc/output"]}]}
        >>> origin = {"module": "fc", "type": "Linear", "call": 1, "what": "output"}
        >>> edit_note(hookscope.Capture().put(torch.ones(2), **origin, kind="output"), told)
        'edited: scale:0.5'
    """
    edits = metadata.get("edits", []) + metadata.get("grad_edits", [])
    words = [entry["edit"].partition("=") for entry in edits if record.key in entry["changed"]]
    told = [f"{what} {''.join(_CHANNELS.findall(place))}".strip() for place, _, what in words]
    return f"edited: {', '.join(told)}" if told else ""


def effect_lines(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return how far the model's output moved, one sentence for each of its tensors."""
    lines: list[Text] = []
    for entry in capture.metadata.get("effect", {}).get("output", []):
        largest, relative = parse_number(entry["largest"]), parse_number(entry["relative"])
        told = (
            f"moved by at most {number_text(largest)} (relative {number_text(relative)}) from the unedited run."
            if largest
            else "did not change."
            if largest is not None
            else "has another shape without the edits."
        )
        lines += sentence(f"The model's {entry['name']} {told}", width, ascii, NOTICE_STYLE)
    return lines


def top_change_lines(
    metadata: dict[str, Any], width: int | None, ascii: bool = False
) -> list[Text]:
    """Return the likeliest classes of each image, without the edits and with them, side by side."""
    top = metadata.get("effect", {}).get("top")
    if not top:
        return []
    rows = [
        Row((*_class_cells(before), *_class_cells(after), Cell(str(n))))
        for n, image in enumerate(zip(top["unedited"], top["edited"], strict=True), start=1)
        for before, after in zip(*image, strict=True)
    ]
    columns = (
        Column("unedited"),
        Column("p unedited", right=True),
        Column("edited"),
        Column("p edited", right=True),
        Column("image", right=True, dull=True),
    )
    squeeze: tuple[Squeeze, ...] = tuple(
        ("drop", title) for title in ("image", "p unedited", "p edited")
    )
    return table_lines(Table(columns, tuple(rows), squeeze, note=""), width, ascii)


def drift_lines(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return how far each recorded tensor moved from the unedited run, if that was recorded."""
    entries = capture.metadata.get("effect", {}).get("drift")
    if not entries:
        return []
    records = {record.key: record for record in capture.records}
    rows = [_drift_row(records[entry["key"]], entry, capture.metadata) for entry in entries]
    columns = (
        Column("drift of"),
        Column("what", dull=True),
        Column("call", right=True, dull=True),
        Column("largest", short="max", right=True),
        Column("relative", short="rel", right=True),
    )
    squeeze: tuple[Squeeze, ...] = (
        ("shorten", "largest"),
        ("shorten", "relative"),
        *(("drop", title) for title in ("note", "relative", "what", "call")),
    )
    return table_lines(Table(columns, tuple(rows), squeeze), width, ascii)


def _drift_row(record: Record, entry: dict[str, Any], metadata: dict[str, Any]) -> Row:
    gone = entry["largest"] is None
    note = "not there without the edits, or of another shape" if gone else ""
    return Row(
        (
            Cell(record.module),
            Cell(record.what),
            Cell(str(record.call)),
            number_cell(parse_number(entry["largest"])),
            number_cell(parse_number(entry["relative"])),
        ),
        Cell(note or edit_note(record, metadata), style=NOTICE_STYLE),
    )


def _class_cells(entry: dict[str, Any]) -> tuple[Cell, Cell]:
    return label_cell(entry), probability_cell(entry)
