"""The summary of gradients: the loss, the table of gradient flow, the coverage."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.results.gradient_flow import VANISHING, gradient_marks
from hookscope.results.records import Record, Recording
from hookscope.specs.record_kinds import PARAM_GRAD
from hookscope.views.text.capture import (
    drift_lines,
    edit_note,
    effect_lines,
    top_change_lines,
    verified_lines,
)
from hookscope.views.text.formats import number_text
from hookscope.views.text.shared_parts import (
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

NUMBERS = ("norm", "largest", "mean", "std", "grad/weight")
SHORT = {"largest": "max", "grad/weight": "ratio"}
COLUMNS = (*ORIGIN_COLUMNS, *(Column(title, SHORT.get(title), right=True) for title in NUMBERS))

MAX_NORMS = 8  # so many of a batch are told on a terminal

SQUEEZE: tuple[Squeeze, ...] = (
    ("shorten", "mean"),
    ("shorten", "std"),
    *(("drop", title) for title in ("type", "dtype", "mean", "std")),
    *(("shorten", title) for title in ("norm", "largest", "grad/weight")),
    *(("drop", title) for title in ("shape", "grad/weight", "largest", "note", "what", "call")),
)


def grads_lines(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the whole summary: loss, table, drift, what edits did, verification, coverage.

    Args:
        capture: the recorded gradients.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    marks = gradient_marks(capture.records)
    told = [
        *(sentence(GRADIENT_LEGEND, width, ascii, "dim") if marks else []),
        *effect_lines(capture, width, ascii),
        *verified_lines(capture, width, ascii),
        *coverage_lines(capture.coverage, width, ascii),
    ]
    loss = loss_lines(capture.metadata, width, ascii)
    drift = drift_lines(capture, width, ascii)
    top = top_change_lines(capture.metadata, width, ascii)
    return join_blocks(loss, grads_table(capture, width, ascii), drift, told, top, width=width)


def loss_lines(metadata: dict[str, Any], width: int | None, ascii: bool = False) -> list[Text]:
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
    lines = sentence("; ".join(parts), width, ascii, "bold")
    penalty = metadata.get("penalty")
    return [*lines, *_penalty_lines(penalty, width, ascii)] if penalty else lines


def _penalty_lines(penalty: dict[str, Any], width: int | None, ascii: bool) -> list[Text]:
    """The penalty, and the norms it is made of: on a terminal the first few of them."""
    norms = [number_text(parse_number(norm)) for norm in penalty["norms"]]
    shown = norms if width is None else norms[:MAX_NORMS]
    more = f" and {len(norms) - len(shown)} more" if len(norms) > len(shown) else ""
    told = [
        f"Penalty {penalty['name']} = {number_text(parse_number(penalty['value']), 6)}",
        f"formula {penalty['formula']}",
        f"norms {', '.join(shown)}{more}",
        "the gradients below are the penalty's",
    ]
    return sentence("; ".join(told), width, ascii, "bold")


def grads_table(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return one row for each gradient in recorded order, then those that do not exist, and why."""
    marks = gradient_marks(capture.records)
    devices = device_notes(capture.records)
    rows = [
        _row(
            record,
            marks.get(record.key, ""),
            (edit_note(record, capture.metadata), devices.get(record.key, "")),
        )
        for record in capture.records
    ]
    rows += missing_rows(capture, len(COLUMNS))
    return table_lines(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)


def _row(record: Record, mark: str, told: tuple[str, ...]) -> Row:
    stats = record.stats
    values = (stats.norm if stats.absmax is not None else None, stats.absmax, stats.mean, stats.std)
    ratio = number_cell(record.ratio) if record.kind == PARAM_GRAD else Cell()
    loud = [word for word in (nonfinite_note(stats), mark) if word and word != VANISHING]
    quiet = [word for word in (*told, mark if mark == VANISHING else "") if word]
    note = note_cell(record, ", ".join(loud), ", ".join(quiet))
    return Row((*origin_cells(record), *map(number_cell, values), ratio), note)
