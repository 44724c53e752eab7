"""What came of a gradient check: where backward and numbers part, and the verdict."""

from __future__ import annotations

from rich.text import Text

from hookscope.results.grad_check import Derivative, GradCheck, GradientComparison
from hookscope.views.text.formats import count_text, plural, shape_text
from hookscope.views.text.shared_parts import ALERT_STYLE, NOTICE_STYLE, number_cell
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

COLUMNS = (
    Column("input"),
    Column("at", right=True),
    Column("output"),
    Column("there", right=True),
    Column("analytical", "analyt.", right=True),
    Column("numerical", "numer.", right=True),
    Column("difference", "diff", right=True),
)
SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in ("analytical", "numerical", "difference")),
    *(("drop", title) for title in ("note", "difference", "output", "there")),
)


def gradcheck_lines(result: GradCheck, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the table and the verdict.

    A row is an entry of a Jacobian: of each pair of input and output the one with the largest
    difference, and where the two part, the five that part farthest.

    Args:
        result: the check.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    rows = [_row(c, entry, first) for c in result.comparisons for first, entry in _entries(c)]
    table = table_lines(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)
    told = _verdict(result, width, ascii)
    if result.unvaried:
        told += sentence(
            f"Not varied, and so not checked: {result.unvaried}.", width, ascii, NOTICE_STYLE
        )
    return join_blocks(table, told, width=width)


def _entries(comparison: GradientComparison) -> list[tuple[bool, Derivative]]:
    return [(number == 0, entry) for number, entry in enumerate(comparison.farthest)]


def _row(comparison: GradientComparison, entry: Derivative, first: bool) -> Row:
    told = [f"{count_text(comparison.wrong)} of {count_text(comparison.compared)} differ"]
    if not comparison.wrong:
        told = [f"{count_text(comparison.compared)} agree"]
    told += [comparison.note] if comparison.note else []
    cells = (
        Cell(f"{comparison.input} ({shape_text(comparison.input_shape)})"),
        Cell(_index(entry.input_index)),
        Cell(f"{comparison.output} ({shape_text(comparison.output_shape)})"),
        Cell(_index(entry.output_index)),
        *map(number_cell, (entry.analytical, entry.numerical, entry.difference)),
    )
    note = Cell("; ".join(told), style=ALERT_STYLE if comparison.wrong else "") if first else Cell()
    return Row(cells, note)


def _verdict(result: GradCheck, width: int | None, ascii: bool) -> list[Text]:
    compared = sum(c.compared for c in result.comparisons)
    wrong = sum(c.wrong for c in result.comparisons)
    how = f"eps {result.eps:g}, atol {result.atol:g}, rtol {result.rtol:g}"
    if result.ok:
        text = f"The backward agrees with numerical gradients: {plural(compared, 'derivative')}"
        return sentence(f"{text}, {how}.", width, ascii, "green")
    text = f"The backward is wrong: {count_text(wrong)} of {plural(compared, 'derivative')} differ"
    return sentence(f"{text} from numerical ones, {how}.", width, ascii, ALERT_STYLE)


def _index(index: tuple[int, ...]) -> str:
    return ",".join(map(str, index)) or "-"
