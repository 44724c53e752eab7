"""Gradients as text: the loss, the table of gradients, coverage."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.files.words import number_text
from hookscope.results.failure import backward_failure
from hookscope.results.health import gradient_marks
from hookscope.results.metadata import PenaltyMetadata
from hookscope.results.records import Record, Recording
from hookscope.specs.checks import VANISHING
from hookscope.specs.tensor_key import PARAM_GRAD
from hookscope.views.capture import (
    capture_document,
    drift_lines,
    edit_note,
    effect_lines,
    verified_lines,
)
from hookscope.views.display import View
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    GRADIENT_LEGEND,
    ORIGIN_COLUMNS,
    coverage_lines,
    device_notes,
    missing_rows,
    nonfinite_note,
    note_cell,
    number_cell,
    origin_cells,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence
from hookscope.views.text.tokens import change_lines, padding_lines, prompt_lines

NUMBERS = ("norm", "largest", "mean", "std", "grad/weight")
SHORT = {"largest": "max", "grad/weight": "ratio"}
COLUMNS = (*ORIGIN_COLUMNS, *(Column(title, SHORT.get(title), right=True) for title in NUMBERS))
MAX_NORMS = 8  # norms of a batch shown on a terminal
SQUEEZE = (
    *shorten("mean", "std"),
    *drop("type", "dtype", "mean", "std"),
    *shorten("norm", "largest", "grad/weight"),
    *drop("shape", "grad/weight", "largest", "note", "what", "call"),
)


def grads_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return the whole summary: loss, table, drift, what edits did, verification, coverage."""
    marks = gradient_marks(capture.records)
    notes = [
        *failure_lines(capture.metadata, options),
        *(sentence(GRADIENT_LEGEND, options, "dim") if marks else []),
        *padding_lines(capture, options),
        *effect_lines(capture, options),
        *verified_lines(capture, options),
        *coverage_lines(capture.coverage, options),
    ]
    head = prompt_lines(capture.metadata, options) + loss_lines(capture.metadata, options)
    drift = drift_lines(capture, options)
    top = change_lines("top", capture.metadata, options)
    top += change_lines("next_tokens", capture.metadata, options)
    return join_blocks(head, grads_table(capture, options), drift, notes, top, options=options)


def failure_lines(metadata: dict[str, Any], options: TextOptions) -> list[Text]:
    """Return where gradients that are not finite began, if that is known."""
    known = metadata.get("failure")
    sentences = backward_failure(known).explanation() if known else []
    return [line for text in sentences for line in sentence(text, options, ALERT_STYLE)]


def loss_lines(metadata: dict[str, Any], options: TextOptions) -> list[Text]:
    """Return the loss: its value, and what exactly was computed."""
    loss = metadata.get("loss")
    if not loss:
        return []
    parts = [
        f"Loss {loss['name']} = {number_text(parse_number(loss['value']), 6)}",
        f"formula {loss['formula']}",
    ]
    parts += [f"reduction {loss['reduction']}"] if loss.get("reduction") else []
    parts += [f"target {loss['target']}"] if loss.get("target") else []
    lines = sentence("; ".join(parts), options, "bold")
    penalty = metadata.get("penalty")
    return [*lines, *_penalty_lines(penalty, options)] if penalty else lines


def _penalty_lines(penalty: PenaltyMetadata, options: TextOptions) -> list[Text]:
    """The penalty and the norms that it is computed from; on a terminal the first few norms."""
    norms = [number_text(parse_number(norm)) for norm in penalty["norms"]]
    shown = norms if options.width is None else norms[:MAX_NORMS]
    more = f" and {len(norms) - len(shown)} more" if len(norms) > len(shown) else ""
    parts = [
        f"Penalty {penalty['name']} = {number_text(parse_number(penalty['value']), 6)}",
        f"formula {penalty['formula']}",
        f"norms {', '.join(shown)}{more}",
        "the gradients below are those of the penalty",
    ]
    return sentence("; ".join(parts), options, "bold")


def grads_table(capture: Recording, options: TextOptions) -> list[Text]:
    """Return one row for each gradient in recorded order, then the missing ones with a reason."""
    marks = gradient_marks(capture.records)
    devices = device_notes(capture.records)
    rows = []
    for record in capture.records:
        notices = (edit_note(record, capture.metadata), devices.get(record.key, ""))
        rows.append(_row(record, marks.get(record.key, ""), notices))
    rows += missing_rows(capture, len(COLUMNS))
    return result_table(Table(COLUMNS, tuple(rows), SQUEEZE), options)


def _row(record: Record, mark: str, notices: tuple[str, ...]) -> Row:
    stats = record.stats
    values = (stats.norm if stats.absmax is not None else None, stats.absmax, stats.mean, stats.std)
    ratio = number_cell(record.ratio) if record.kind == PARAM_GRAD else Cell()
    vanishing = mark == VANISHING
    alerts = filter(None, (nonfinite_note(stats), "" if vanishing else mark))
    notices = tuple(filter(None, (*notices, mark if vanishing else "")))
    note = note_cell(record, ", ".join(alerts), ", ".join(notices))
    return Row((*origin_cells(record), *map(number_cell, values), ratio), note)


VIEW: View[Recording] = View(grads_lines, capture_document, columns=(*COLUMNS, NOTE))
