"""A capture as text: its table, what edits changed, verification, coverage, the top classes."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.files.words import count_text, number_text
from hookscope.results.health import gradient_marks
from hookscope.results.metadata import RecordChange
from hookscope.results.records import Record, Recording
from hookscope.specs.edit import VALUE_OPERATIONS
from hookscope.specs.patterns import layer_text
from hookscope.specs.tensor_key import ATTENTION, COLUMN
from hookscope.views.display import View, make_document
from hookscope.views.text.shared_parts import (
    NOTICE_STYLE,
    ORIGIN_COLUMNS,
    count_cell,
    coverage_lines,
    device_notes,
    join_names,
    label_cell,
    missing_rows,
    nonfinite_note,
    note_cell,
    number_cell,
    origin_cells,
    probability_cell,
    share_cell,
    untrained_lines,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import (
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)
from hookscope.views.text.tokens import (
    change_lines,
    generated_lines,
    next_token_lines,
    padding_lines,
    prompt_lines,
)

_CHANNELS = re.compile(r"\[[\d,\s-]*\]$")
NUMBERS = ("mean", "std", "min", "max")
COLUMNS = (*ORIGIN_COLUMNS, *(Column(title, right=True) for title in (*NUMBERS, "zeros")))
SQUEEZE = (
    *shorten(*NUMBERS),
    *drop("type", "dtype", "note", "min", "max", "std", "zeros", "shape", "mean", "what", "call"),
)


def capture_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return the whole summary: table, changes, effect of edits, coverage, classes."""
    notes = [
        *padding_lines(capture, options),
        *effect_lines(capture, options),
        *verified_lines(capture, options),
        *attention_lines(capture, options),
        *expert_lines(capture.metadata, options),
        *column_lines(capture, options),
    ]
    if capture.has_coverage:
        notes += coverage_lines(capture.coverage, options)
    metadata = capture.metadata
    top = change_lines("top", metadata, options) or top_lines(metadata, options)
    top += change_lines("next_tokens", metadata, options) or next_token_lines(metadata, options)
    top += generated_lines(metadata, options)
    drift = drift_lines(capture, options)
    prompt = prompt_lines(capture.metadata, options)
    table = capture_table(capture, options)
    return join_blocks(prompt, table, drift, notes, top, options=options)


def capture_table(capture: Recording, options: TextOptions) -> list[Text]:
    """Return one row for each recorded tensor in execution order, then the missing ones."""
    devices = device_notes(capture.records)
    rows = [
        _capture_row(record, edit_note(record, capture.metadata), devices.get(record.key, ""))
        for record in capture.records
    ]
    rows += missing_rows(capture, len(COLUMNS))
    return result_table(Table(COLUMNS, tuple(rows), SQUEEZE), options)


def _capture_row(record: Record, edited: str, device: str) -> Row:
    stats = record.stats
    numbers = [number_cell(value) for value in (stats.mean, stats.std, stats.min, stats.max)]
    zeros = share_cell(stats.zero_share) if stats.numel else Cell("-")
    notices = [edited or ("" if stats.numel else "empty"), device]
    note = note_cell(record, nonfinite_note(stats), ", ".join(filter(None, notices)))
    return Row((*origin_cells(record), *numbers, zeros), note)


def verified_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return the line on the comparison with a run without hooks, if there was one."""
    if not capture.metadata.get("verified"):
        return []
    edited = " (the edits applied)" if capture.metadata.get("edits") else ""
    text = f"Verified: a run without recording hooks{edited} gives a bit-identical output."
    return sentence(text, options, "green")


def attention_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return how attention weights were obtained, if they were asked for."""
    entries = capture.metadata.get("attention")
    if entries is None:
        return []
    hidden = sum(absent.kind == ATTENTION for absent in capture.absent)
    recomputed = [entry for entry in entries if "difference" in entry]
    parts = []
    if len(entries) > len(recomputed):
        parts.append(f"{count_text(len(entries) - len(recomputed))} read from the model")
    if recomputed:
        furthest = max(recomputed, key=lambda entry: entry["difference"] / entry["tolerance"])
        parts.append(
            f"{count_text(len(recomputed))} recomputed; their outputs differ from the model's by"
            f" at most {furthest['difference']:.1e} of the largest entry"
            f" (limit {furthest['tolerance']:.0e})"
        )
    if hidden:
        parts.append(f"{count_text(hidden)} not available (the table gives the reasons)")
    none = "none found in these layers (docs/ops.md lists the kinds that are recognized)"
    return sentence(f"Attention: {'; '.join(parts) or none}.", options)


def expert_lines(metadata: dict[str, Any], options: TextOptions) -> list[Text]:
    """Return a line for each router: the tokens of each expert, from the first."""
    lines: list[Text] = []
    for entry in metadata.get("experts", []):
        tokens = " ".join(map(str, entry["tokens"]))
        lines += sentence(f"Tokens by expert, {entry['key']}: {tokens}.", options)
    return lines


def column_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return the names of the columns that are stored beside the rows of a dataset."""
    names = [record.key for record in capture.records if record.kind == COLUMN]
    names += capture.metadata.get("columns", ())
    return sentence(f"Stored beside the rows: {', '.join(names)}.", options) if names else []


def top_lines(metadata: dict[str, Any], options: TextOptions) -> list[Text]:
    """Return the most probable classes of each image of the batch, if the model is a classifier."""
    images = metadata.get("top") or []
    if not any(images):
        return []
    inputs = [str(entry.get("spec", "")) for entry in metadata.get("inputs", [])]
    if len(inputs) != len(images):
        inputs = [str(n + 1) for n in range(len(images))]
    rows = [
        Row.of(label_cell(entry), count_cell(entry["index"]), probability_cell(entry), Cell(name))
        for name, entries in zip(inputs, images, strict=True)
        for entry in entries
    ]
    columns = (
        Column(f"top {max(map(len, images))}"),
        Column("class", right=True),
        Column("probability", short="prob", right=True),
        Column("input", optional=True),
    )
    squeeze = (*drop("class"), *shorten("probability"))
    table = table_lines(Table(columns, tuple(rows), squeeze, note=""), options)
    return table + untrained_lines(metadata, options)


def edit_note(record: Record, metadata: dict[str, Any]) -> str:
    """Return which edits changed a tensor, such as ``edited: zero [3,7]``; empty if none did."""
    edits = metadata.get("edits", []) + metadata.get("grad_edits", [])
    specs = [entry["edit"].partition("=") for entry in edits if record.key in entry["changed"]]
    operations = [
        f"{operation} {''.join(_CHANNELS.findall(target))}".strip()
        for target, _, operation in specs
    ]
    return f"edited: {', '.join(operations)}" if operations else ""


def effect_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return how much edits changed the model's output: one sentence for each of its tensors."""
    lines: list[Text] = []
    hooks = bool(capture.metadata.get("hooks"))
    edits = any(map(capture.metadata.get, ("edits", "grad_edits"))) or not hooks
    without = f"without {' and '.join(['edits'] * edits + ['hooks'] * hooks)}"
    for applied in capture.metadata.get("edits", []):
        operation = applied["edit"].rpartition("=")[2].partition(":")[0]
        if operation in VALUE_OPERATIONS and VALUE_OPERATIONS[operation].changes_weights:
            names = join_names(applied["changed"], options)
            lines += sentence(f"{applied['edit']} changed {names}.", options, NOTICE_STYLE)
    for entry in capture.metadata.get("effect", {}).get("output", []):
        largest, relative = parse_number(entry["largest"]), parse_number(entry["relative"])
        if largest is None:
            change = f"has a different shape {without}."
        elif largest:
            change = f"changed by at most {number_text(largest)} (relative"
            change += f" {number_text(relative)}) compared with the run {without}."
        else:
            change = "did not change."
        lines += sentence(f"The model's {entry['name']} {change}", options, NOTICE_STYLE)
    drift = capture.metadata.get("effect", {}).get("drift", [])
    if hooks and not edits and drift and all(entry["largest"] == 0 for entry in drift):
        text = "The hooks changed nothing: every recorded tensor is equal without them. A hook"
        text += " changes a value by returning the new one."
        lines += sentence(text, options, NOTICE_STYLE)
    return lines


def drift_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return how much each recorded tensor differs from the unedited run, if that was recorded."""
    entries = capture.metadata.get("effect", {}).get("drift")
    if not entries:
        return []
    records = {record.key: record for record in capture.records}
    rows = [_drift_row(records[entry["key"]], entry, capture.metadata) for entry in entries]
    columns = (
        Column("change at"),
        Column("what", optional=True),
        Column("call", right=True, optional=True),
        Column("largest", short="max", right=True),
        Column("relative", short="rel", right=True),
    )
    squeeze = (*shorten("largest", "relative"), *drop("note", "relative", "what", "call"))
    return table_lines(Table(columns, tuple(rows), squeeze), options)


def _drift_row(record: Record, entry: RecordChange, metadata: dict[str, Any]) -> Row:
    comparable = entry["largest"] is not None
    note = "" if comparable else "absent or of another shape without the edits"
    return Row(
        (
            Cell(layer_text(record.module)),
            Cell(record.what),
            count_cell(record.call),
            number_cell(parse_number(entry["largest"])),
            number_cell(parse_number(entry["relative"])),
        ),
        Cell(note or edit_note(record, metadata), style=NOTICE_STYLE),
    )


def capture_document(capture: Recording, file: str | None = None) -> dict[str, Any]:
    """Return a recording: the metadata's keys, then file, records, absent, coverage."""
    command = str(capture.metadata.get("command", "capture"))
    content = capture.to_json()
    if any(record.kind.endswith("grad") for record in capture.records):
        marks = gradient_marks(capture.records)
        for data, record in zip(content["records"], capture.records, strict=True):
            data.update(ratio=record.ratio, mark=marks.get(record.key))
    first = {**capture.metadata, "top": [], "file": file}  # the order of the keys
    return make_document(command, {**first, **content})


VIEW: View[Recording] = View(capture_lines, capture_document, columns=(*COLUMNS, NOTE))
