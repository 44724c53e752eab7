"""A gradient check as text: differences from numerical gradients, and the verdict."""

from __future__ import annotations

from rich.text import Text

from hookscope.files.words import count_text, plural, shape_text
from hookscope.results.grad_check import Derivative, GradCheck, GradientComparison
from hookscope.views.display import View, json_document
from hookscope.views.text.shared_parts import ALERT_STYLE, NOTICE_STYLE, number_cell
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

COLUMNS = (
    Column("input"),
    Column("at", right=True),
    Column("output"),
    Column("there", right=True),
    Column("analytical", "analyt.", right=True),
    Column("numerical", "numer.", right=True),
    Column("difference", "diff", right=True),
)
SQUEEZE = (
    *shorten("analytical", "numerical", "difference"),
    *drop("note", "difference", "output", "there"),
)


def gradcheck_lines(result: GradCheck, options: TextOptions) -> list[Text]:
    """Return the verdict, after a table of the Jacobians' entries with the largest differences."""
    rows = [
        _row(comparison, derivative, first=i == 0)
        for comparison in result.comparisons
        for i, derivative in enumerate(comparison.farthest)
    ]
    table = result_table(Table(COLUMNS, tuple(rows), SQUEEZE), options)
    verdict = _verdict(result, options)
    if result.unvaried:
        text = f"Not varied, therefore not checked: {result.unvaried}."
        verdict += sentence(text, options, NOTICE_STYLE)
    return join_blocks(table, verdict, options=options)


def _row(comparison: GradientComparison, entry: Derivative, first: bool) -> Row:
    compared = count_text(comparison.compared)
    notes = [f"{compared} agree"]
    if comparison.wrong:
        notes = [f"{count_text(comparison.wrong)} of {compared} differ"]
    notes += [comparison.note] if comparison.note else []
    cells = (
        Cell(f"{comparison.input} ({shape_text(comparison.input_shape)})"),
        Cell(_index_text(entry.input_index)),
        Cell(f"{comparison.output} ({shape_text(comparison.output_shape)})"),
        Cell(_index_text(entry.output_index)),
        *map(number_cell, (entry.analytical, entry.numerical, entry.difference)),
    )
    if not first:
        return Row(cells)
    return Row(cells, Cell("; ".join(notes), style=ALERT_STYLE if comparison.wrong else ""))


def _verdict(result: GradCheck, options: TextOptions) -> list[Text]:
    compared = sum(c.compared for c in result.comparisons)
    wrong = sum(c.wrong for c in result.comparisons)
    settings = f"eps {result.eps:g}, atol {result.atol:g}, rtol {result.rtol:g}"
    if result.ok:
        text = "The backward pass agrees with numerical gradients:"
        text += f" {plural(compared, 'derivative')}, {settings}."
        return sentence(text, options, "green")
    text = f"The backward pass is wrong: {count_text(wrong)} of {plural(compared, 'derivative')}"
    text += f" differ from the numerical ones, {settings}."
    return sentence(text, options, ALERT_STYLE)


def _index_text(index: tuple[int, ...]) -> str:
    return ",".join(map(str, index)) or "-"


VIEW: View[GradCheck] = View(gradcheck_lines, json_document("gradcheck"), columns=(*COLUMNS, NOTE))
