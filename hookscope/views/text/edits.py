"""What edits did, in words and tables: the output's change, the likeliest classes, the drift."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text

from hookscope.files.strict_json import number
from hookscope.results.records import Record, Recording
from hookscope.views.text.lower import lower, sentence
from hookscope.views.text.records import QUIET, label_cell, number_cell, probability_cell
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import real

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
        largest, relative = number(entry["largest"]), number(entry["relative"])
        told = (
            f"moved by at most {real(largest)} (relative {real(relative)}) from the unedited run."
            if largest
            else "did not change."
            if largest is not None
            else "has another shape without the edits."
        )
        lines += sentence(f"The model's {entry['name']} {told}", width, ascii, QUIET)
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
    return lower(Table(columns, tuple(rows), squeeze, note=""), width, ascii)


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
    return lower(Table(columns, tuple(rows), squeeze), width, ascii)


def _drift_row(record: Record, entry: dict[str, Any], metadata: dict[str, Any]) -> Row:
    gone = entry["largest"] is None
    note = "not there without the edits, or of another shape" if gone else ""
    return Row(
        (
            Cell(record.module),
            Cell(record.what),
            Cell(str(record.call)),
            number_cell(number(entry["largest"])),
            number_cell(number(entry["relative"])),
        ),
        Cell(note or edit_note(record, metadata), style=QUIET),
    )


def _class_cells(entry: dict[str, Any]) -> tuple[Cell, Cell]:
    return label_cell(entry), probability_cell(entry)
