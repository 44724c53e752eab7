"""Cells, rows and sentences that several views share: of records, coverage and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.files.words import (
    DIGITS,
    cosine_text,
    count_text,
    number_text,
    percent_text,
    plural,
    shape_text,
)
from hookscope.results.diff_result import CLOSE, DIFFERS, EQUAL
from hookscope.results.health import SPREAD
from hookscope.results.metadata import (
    CamImage,
    ClassProbability,
    TokenProbability,
    has_random_weights,
)
from hookscope.results.records import Absent, Coverage, Record, Recording, UnexecutedModule
from hookscope.results.sweep import SkippedLayer
from hookscope.specs.checks import DEFAULT_THRESHOLDS, EXPLODING, VANISHING
from hookscope.specs.patterns import layer_text
from hookscope.specs.tensor_key import PARAM_GRAD
from hookscope.views.text.table import Cell, Column, Row
from hookscope.views.text.text_table import TextOptions, sentence

if TYPE_CHECKING:
    from hookscope.results.stats import Stats

ALERT_STYLE = "bold red"
NOTICE_STYLE = "yellow"
VERDICT_STYLES = {DIFFERS: ALERT_STYLE, CLOSE: NOTICE_STYLE, EQUAL: ""}
FIRST_DIFFERENCE_NOTE = "first difference"
MAX_NAMES = 3  # names given for one reason on a terminal; a pipe gets all of them
ORIGIN_COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("what", optional=True),
    Column("call", right=True, optional=True),
    Column("shape"),
    Column("dtype", optional=True),
)
_PARAMETER_RATIO = SPREAD[PARAM_GRAD] / DEFAULT_THRESHOLDS.vanishing
GRADIENT_LEGEND = (
    f"{VANISHING}: the norm is below {DEFAULT_THRESHOLDS.floor:g}, or below"
    f" 1/{1 / DEFAULT_THRESHOLDS.vanishing:,.0f} (parameters: 1/{_PARAMETER_RATIO:,.0f}) of the"
    f" norm nearest to the loss; {EXPLODING}: as many times larger than that norm, or an entry"
    f" above {DEFAULT_THRESHOLDS.ceiling:,.0f}."
)


def origin_cells(record: Record) -> tuple[Cell, ...]:
    """Return the cells of the ``ORIGIN_COLUMNS``."""
    return (
        Cell(layer_text(record.module)),
        Cell(record.type, style="cyan"),
        Cell(record.what),
        count_cell(record.call),
        Cell(shape_text(record.shape)),
        Cell(record.dtype),
    )


def number_cell(value: float | None) -> Cell:
    """Return a number with four digits, three on a narrow terminal, and six in a pipe."""
    short = number_text(value, DIGITS - 1)
    return Cell(number_text(value), short, value=value, rounded=True)


def cosine_cell(value: float | None) -> Cell:
    """Return a cosine; one below 1 is never shown as 1."""
    near_one = value is not None and 0.99 <= value < 1  # --precision would round it to 1
    short = cosine_text(value, DIGITS - 1)
    return Cell(cosine_text(value), short, value=value, rounded=not near_one)


def logit_cell(entry: ClassProbability | TokenProbability) -> Cell:
    """Return the logit of a class or token; empty for older files, which do not have it."""
    value = parse_number(entry.get("logit"))
    return Cell() if value is None else number_cell(value)


def count_cell(number: int) -> Cell:
    """Return a small number that is exact at any width, such as that of a call."""
    return Cell(str(number), value=number)


def share_cell(share: float, style: str = "") -> Cell:
    """Return a share from 0 to 1: a percentage on a terminal, the number in a pipe."""
    return Cell(percent_text(share), value=share, style=style)


def label_cell(entry: ClassProbability | CamImage) -> Cell:
    """Return the name of a class, from an entry of the most probable classes."""
    return Cell(str(entry.get("label") or f"class {entry['index']}"))


def probability_cell(entry: ClassProbability | CamImage | TokenProbability) -> Cell:
    """Return the probability of a class, from an entry of the most probable classes."""
    value = parse_number(entry["probability"])
    if value is None or value != value:
        return Cell("NaN!", style=ALERT_STYLE)
    return Cell(f"{value:.1%}", value=value)


def untrained_lines(
    metadata: dict[str, Any], options: TextOptions, what: str = "class names mean"
) -> list[Text]:
    """Return the line that belongs below class names or tokens if the weights are random."""
    if not has_random_weights(metadata):
        return []
    return sentence(f"Random weights: the {what} nothing.", options, NOTICE_STYLE)


def note_cell(record: Record, alert: str = "", notice: str = "") -> Cell:
    """Return the note of a record: an alert, a notice, then the module's other names."""
    aliases = f"= {', '.join(record.aliases)}" if record.aliases else ""
    text = ", ".join(part for part in (alert, notice, aliases) if part)
    return Cell(text, style=ALERT_STYLE if alert else NOTICE_STYLE if notice else "magenta")


def device_notes(records: Sequence[Record]) -> dict[str, str]:
    """Return the device of each tensor by key; empty if all tensors have the same device."""
    if len({record.device for record in records}) < 2:
        return {}
    return {record.key: f"on {record.device}" for record in records}


def missing_rows(capture: Recording, columns: int) -> list[Row]:
    """Return rows for the tensors that do not exist, then for the modules that never ran."""
    rows = [_missing_row(absent, columns) for absent in capture.absent]
    listed = {absent.module for absent in capture.absent}
    rows += [
        _missing_row(module, columns)
        for module in capture.coverage.not_executed
        if module.module not in listed
    ]
    return rows


def _missing_row(entry: Absent | UnexecutedModule, columns: int) -> Row:
    cells: Sequence[Cell] = (Cell(layer_text(entry.module)), Cell(entry.type, style="cyan"))
    if isinstance(entry, Absent):
        note = Cell(entry.reason, style=NOTICE_STYLE)
        cells = (*cells, Cell(entry.what), Cell(str(entry.call) if entry.call else ""))
    else:
        note = Cell("never ran", full=f"never ran: {entry.reason}", style=NOTICE_STYLE)
    return Row((*cells, *[Cell()] * (columns - len(cells))), note, missing=True)


def nonfinite_note(stats: Stats) -> str:
    """Return how many entries are NaN or infinite, empty if none is.

    >>> from hookscope.results.stats import Stats
    >>> nonfinite_note(Stats(4, 0.0, 0.0, 0.0, 0.0, 0.0, 2, nan=1, inf=1))
    'NaN! 1 of 4, Inf! 1 of 4'
    """
    counts = (("NaN!", stats.nan), ("Inf!", stats.inf))
    return ", ".join(
        f"{word} {count_text(count)} of {count_text(stats.numel)}"
        for word, count in counts
        if count
    )


def coverage_lines(coverage: Coverage, options: TextOptions) -> list[Text]:
    """Return what matched, ran (and how often), and never ran, grouped by likely reason."""
    repeated = [
        f"{layer_text(module.module)} x{module.calls}"
        for module in coverage.executed
        if module.calls > 1
    ]
    text = f"{plural(coverage.matched, 'layer')} matched, {count_text(len(coverage.executed))} ran"
    if repeated:
        names = join_names(repeated, options)
        text += f" ({count_text(len(repeated))} ran more than once: {names})"
    lines = sentence(text + ".", options)
    if coverage.stopped_after:
        lines += sentence(_stop_text(coverage, options), options, NOTICE_STYLE)
    reasons = group_names(
        (module.reason, layer_text(module.module)) for module in coverage.not_executed
    )
    for reason, modules in reasons.items():
        text = f"Never ran: {join_names(modules, options)} ({reason})."
        lines += sentence(text, options, NOTICE_STYLE)
    longest = max(map(len, (repeated, coverage.not_run, *reasons.values())))
    if options.width is not None and longest > MAX_NAMES:
        lines += sentence("--json lists all names.", options, "dim")
    return lines


def _stop_text(coverage: Coverage, options: TextOptions) -> str:
    """Where the run ended early, and what was not run."""
    last = layer_text(coverage.stopped_after)
    if not coverage.calls_complete:
        return (
            f"The run ended after a call of {last}. Later modules were not run, and later calls of"
            " the selected layers are not recorded."
        )
    names = join_names([layer_text(name) for name in coverage.not_run], options)
    return f"Not run, because the run ended after {last}: {names or 'what follows'}."


def group_names(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names for each reason, from pairs of a reason and a name, in their order.

    >>> group_names([("frozen", "a"), ("unused", "b"), ("frozen", "c")])
    {'frozen': ['a', 'c'], 'unused': ['b']}
    """
    groups: dict[str, list[str]] = {}
    for reason, name in pairs:
        groups.setdefault(reason, []).append(name)
    return groups


def join_names(names: Sequence[str], options: TextOptions) -> str:
    """Return the names with commas between; on a terminal the first few and a count."""
    if options.width is None or len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMES])} and {count_text(len(names) - MAX_NAMES)} more"


def both_text(a: str, b: str) -> str:
    """Return what two sides have, once if it is the same."""
    return a if a == b else f"{a}, {b}"


def unmatched_row(cells: Sequence[Cell], columns: int, note: str) -> Row:
    """Return the row of a tensor that only one side has."""
    empty = [Cell()] * (columns - len(cells))
    return Row((*cells, *empty), Cell(note, style=NOTICE_STYLE), missing=True)


def styled_lines(sentences: Iterable[tuple[str, str]], options: TextOptions) -> list[Text]:
    """Return sentences as lines, each with its style."""
    return [line for text, style in sentences for line in sentence(text, options, style)]


def failed_lines(failures: Iterable[tuple[str, str]], options: TextOptions) -> list[Text]:
    """Return the names of what failed, a sentence for each reason."""
    lines: list[Text] = []
    for reason, names in group_names(failures).items():
        text = f"Failed: {join_names(list(dict.fromkeys(names)), options)}. {reason}"
        lines += sentence(text, options, ALERT_STYLE)
    return lines


def skipped_lines(left_out: Sequence[SkippedLayer], options: TextOptions) -> list[Text]:
    """Return which layers were skipped, a sentence for each reason."""
    lines: list[Text] = []
    groups = group_names((layer.reason, layer_text(layer.layer)) for layer in left_out)
    for reason, names in groups.items():
        each = ", each" * (len(names) > 1)
        text = f"Skipped{each} because {reason}: {join_names(names, options)}."
        lines += sentence(text, options, NOTICE_STYLE)
    return lines
