"""Where differences arise, as text: a row for each call of a module, and the verdict."""

from __future__ import annotations

from math import inf

from rich.text import Text

from hookscope.files.words import count_text, number_text, plural
from hookscope.results.local_diff import (
    BETWEEN,
    FAULT,
    FAULT_LIMIT,
    ROUNDING,
    LocalDiff,
    ModuleError,
)
from hookscope.views.capture_diff import unmatched_rows
from hookscope.views.display import View, json_document
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    join_names,
    number_cell,
    styled_lines,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table

COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("accumulated", "accum.", right=True),
    Column("own", right=True),
    Column("floor", right=True, optional=True),
    Column("own/floor", "times", right=True, optional=True),
    Column("verdict"),
)
SQUEEZE = (*shorten("accumulated", "own", "floor", "own/floor"), *drop("note", "floor", "type"))
_STYLES = {FAULT: ALERT_STYLE, BETWEEN: NOTICE_STYLE, ROUNDING: ""}


def local_diff_lines(result: LocalDiff, options: TextOptions) -> list[Text]:
    """Return the table and the verdict."""
    shown = [n for n, column in enumerate(COLUMNS) if result.floor or "floor" not in column.title]
    rows = [_row(error, result, shown) for error in result.errors]
    rows += unmatched_rows(result.diff, len(shown), with_tensor=False)
    table = Table(tuple(COLUMNS[n] for n in shown), tuple(rows), SQUEEZE)
    lines = styled_lines(_verdict(result, options), options)
    return join_blocks(result_table(table, options), lines, options=options)


def _row(error: ModuleError, result: LocalDiff, shown: list[int]) -> Row:
    verdict = result.verdict(error)
    cells = (
        Cell(error.key),
        Cell(error.type, style="cyan"),
        number_cell(error.accumulated),
        number_cell(error.own),
        number_cell(error.unit if error.own is not None else None),
        number_cell(error.units),
        Cell(verdict, style=_STYLES.get(verdict, "")),
    )
    notes = list(filter(None, (error.reason, error.note)))
    notes += [f"at {error.tensor}"] if _is_passed_on(error) and verdict != ROUNDING else []
    notes += [f"only in one of the two: {', '.join(error.unmatched)}"] if error.unmatched else []
    notes += [f"in B: {error.other}"] if error.other != error.module else []
    style = ALERT_STYLE if verdict == FAULT else NOTICE_STYLE
    return Row(tuple(cells[n] for n in shown), Cell("; ".join(notes), style=style))


def _is_passed_on(error: ModuleError) -> bool:
    """Whether the error is in what the module passes to one within it."""
    return bool(error.tensor) and not error.tensor.startswith(f"{error.key}/output")


def _verdict(result: LocalDiff, options: TextOptions) -> list[tuple[str, str]]:
    """The sentences under the table, each with its style."""
    worst, *others = result.faults or (None,)
    between = [error.key for error in result.errors if result.verdict(error) == BETWEEN]
    sentences = []
    if worst is not None:
        sentences.append((_fault_text(worst, result), ALERT_STYLE))
        if others:
            names = join_names([error.key for error in others], options)
            sentences.append((f"Other modules with a fault of their own: {names}.", ALERT_STYLE))
        if echoes := len(result.echoes):
            cause = "them" if others else "it"
            text = f"The outputs of {plural(echoes, 'later call')} differ only because of {cause}."
            sentences.append((text, NOTICE_STYLE))
    else:
        sentences.append((_healthy_text(result), "green"))
    if between:
        names = join_names(between, options)
        text = f"Between rounding and a fault (10 to 100 times the floor): {names}."
        sentences.append((text, NOTICE_STYLE))
    if unmatched := sum(not tensor.reason for tensor in (*result.diff.only_a, *result.diff.only_b)):
        text = f"Without a match: {plural(unmatched, 'tensor')}. What their modules compute counts"
        sentences.append((f"{text} as the own error of the matched module around them.", ""))
    return sentences


def _fault_text(worst: ModuleError, result: LocalDiff) -> str:
    size = f"own error {number_text(worst.own, 3)}"
    if result.floor:
        size += f", {_times(worst)} times its rounding floor"
    where = f", in what it passes on ({worst.tensor})" if _is_passed_on(worst) else ""
    return f"{worst.key} ({worst.type}): {size}{where}."


def _times(error: ModuleError) -> str:
    units = error.units or 0.0
    return count_text(round(units)) if FAULT_LIMIT <= units < inf else number_text(units, 2)


def _healthy_text(result: LocalDiff) -> str:
    calls = plural(len(result.errors), "call")
    largest = max(result.errors, key=lambda error: error.units or 0.0)
    if not result.floor:
        return f"{calls} compared: no module has an error of its own beyond the tolerance."
    return (
        f"{calls} compared: no module has a fault of its own. The largest own error is"
        f" {_times(largest)} times the rounding floor, in {largest.key}."
    )


VIEW: View[LocalDiff] = View(local_diff_lines, json_document("diff"), columns=(*COLUMNS, NOTE))
