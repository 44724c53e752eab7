"""Where differences arise, as text: a row for each call of a module, and the verdict."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

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
from hookscope.specs.patterns import layer_text
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

if TYPE_CHECKING:
    from hookscope.views.error_chart import ErrorChart

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
        Cell(layer_text(error.key)),
        Cell(error.type, style="cyan"),
        number_cell(error.accumulated),
        number_cell(error.own),
        number_cell(error.unit if error.own is not None else None),
        number_cell(error.units),
        Cell(verdict, style=_STYLES.get(verdict, "")),
    )
    notes = list(filter(None, (error.reason, error.note)))
    notes += [f"at {error.tensor}"] if _not_returned(error) and verdict != ROUNDING else []
    notes += [f"only in one of the two: {', '.join(error.unmatched)}"] if error.unmatched else []
    notes += [f"in B: {error.other}"] if error.other != error.module else []
    style = ALERT_STYLE if verdict == FAULT else NOTICE_STYLE
    return Row(tuple(cells[n] for n in shown), Cell("; ".join(notes), style=style))


def _not_returned(error: ModuleError) -> str:
    """The tensor with the error, if that is not an output; else an empty text."""
    if not error.tensor or error.tensor.startswith(f"{error.key}/output"):
        return ""
    # Its own argument is there only if the module changes it in place.
    is_own = error.tensor.startswith(f"{error.key}/")
    return f"what it {'writes into its argument' if is_own else 'passes on'} ({error.tensor})"


def _verdict(result: LocalDiff, options: TextOptions) -> list[tuple[str, str]]:
    """The sentences under the table, each with its style."""
    worst, *others = result.faults or (None,)
    sentences = []
    between = [layer_text(error.key) for error in result.errors if result.verdict(error) == BETWEEN]
    if worst is not None:
        sentences.append((_fault_text(worst, result), ALERT_STYLE))
        if others:
            names = join_names([layer_text(error.key) for error in others], options)
            sentences.append((f"Other modules with a fault of their own: {names}.", ALERT_STYLE))
        if echoes := len(result.echoes):
            cause = "them" if others else "it"
            text = f"The outputs of {plural(echoes, 'later call')} differ only because of {cause}."
            sentences.append((text, NOTICE_STYLE))
    else:
        sentences.append((_healthy_text(result), "green" if result.same else NOTICE_STYLE))
    if between:
        names = join_names(between, options)
        text = f"Between rounding and a fault (10 to 100 times the floor): {names}."
        sentences.append((text, NOTICE_STYLE))
    if unmatched := sum(not tensor.reason for tensor in (*result.diff.only_a, *result.diff.only_b)):
        text = f"Without a match: {plural(unmatched, 'tensor')}. What their modules compute counts"
        sentences.append((f"{text} as the own error of the matched module around them.", ""))
    return sentences


def _fault_text(worst: ModuleError, result: LocalDiff) -> str:
    name = f"{layer_text(worst.key)} ({worst.type})"
    if worst.own == inf:
        return f"{name}: {_infinite_text(worst)}."
    size = f"own error {number_text(worst.own, 3)}"
    if result.floor:
        size += f", {_times(worst)} times its rounding floor"
    where = f", in {_not_returned(worst)}" if _not_returned(worst) else ""
    return f"{name}: {size}{where}."


def _infinite_text(error: ModuleError) -> str:
    """Why the own error of a module has no size."""
    what = _not_returned(error) or "its output"
    if error.a_is_zero:
        return f"{what} is exactly zero in A and not in B"
    if any(key.startswith(f"{error.key}/output") for key in error.unmatched):
        return "its output has another shape or structure in B"
    return f"{what} has NaN or infinite entries in A or B alone"


def _times(error: ModuleError) -> str:
    units = error.units or 0.0
    return count_text(round(units)) if FAULT_LIMIT <= units < inf else number_text(units, 2)


def _healthy_text(result: LocalDiff) -> str:
    left = sum(error.own is None for error in result.errors)
    calls = plural(len(result.errors) - left, "call")
    largest = max(result.errors, key=lambda error: error.units or 0.0)
    text = f"{calls} compared: no module has an error of its own beyond the tolerance."
    if result.floor:
        text = (
            f"{calls} compared: no module has a fault of its own. The largest own error is"
            f" {_times(largest)} times the rounding floor, in {layer_text(largest.key)}."
        )
    elif largest.own:
        size, limit = number_text(largest.own, 3), number_text(largest.unit, 3)
        text += f" The largest is {size} of {limit}, in {layer_text(largest.key)}."
    if not left and (beyond := sum(error.differs for error in result.errors)):
        text += (
            f" The outputs of {plural(beyond, 'call')} differ beyond the tolerance all the same:"
            " small errors add up."
        )
    return f"{text} Not compared on equal inputs: {plural(left, 'call')}." if left else text


def local_diff_chart(result: LocalDiff) -> ErrorChart:
    """Return both errors of each call, and the floor if it was measured."""
    # A page needs jinja2, which takes longer to load than many files take to compare.
    from hookscope.views.error_chart import ErrorChart, ErrorLine, compared_text

    errors = result.errors
    lines = [
        ErrorLine("accumulated error", [error.accumulated for error in errors]),
        ErrorLine("own error", [error.own for error in errors], joined=False),
    ]
    if result.floor:
        floors = [None if error.own is None else error.unit for error in errors]
        lines.append(ErrorLine("floor", floors))
    faults = (n for n, error in enumerate(errors) if result.verdict(error) == FAULT)
    return ErrorChart(
        "Errors of B against A, module by module",
        compared_text(result.diff.a, result.diff.b),
        "module",
        [layer_text(error.key) for error in errors],
        [error.module for error in errors],
        lines,
        next(faults, None),
        "is the first with a fault of its own",
    )


def write_local_diff_page(result: LocalDiff, path: Path) -> int:
    """Write the page of a comparison; return its size in bytes."""
    return local_diff_chart(result).page(result).write(path)


VIEW: View[LocalDiff] = View(
    local_diff_lines,
    json_document("diff"),
    write_local_diff_page,
    lambda result, dpi: local_diff_chart(result).draw(),
    (*COLUMNS, NOTE),
)
