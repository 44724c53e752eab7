"""A comparison as text: a row for each pair, tensors without a match, the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from hookscope.files.words import count_text, plural, shape_text
from hookscope.results.diff_result import (
    BY_FOLD,
    BY_MAP,
    BY_NAME,
    BY_ORDER,
    BY_VALUE,
    CLOSE,
    DIFFERS,
    Diff,
    TensorComparison,
)
from hookscope.views.display import View, json_document
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    FIRST_DIFFERENCE_NOTE,
    NOTICE_STYLE,
    VERDICT_STYLES,
    both_text,
    cosine_cell,
    number_cell,
    share_cell,
    styled_lines,
    unmatched_row,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table

if TYPE_CHECKING:
    from hookscope.views.error_chart import ErrorChart

COLUMNS = (
    Column("tensor"),
    Column("type"),
    Column("shape"),
    Column("dtype", optional=True),
    Column("by", optional=True),
    Column("absolute", "abs", right=True),
    Column("relative", "rel", right=True),
    Column("cosine", right=True),
    Column("SNR/dB", "SNR", right=True),
    Column("beyond", right=True),
    Column("verdict"),
)
SQUEEZE = (
    *shorten("absolute", "relative", "cosine", "SNR/dB"),
    *drop("note", "type", "dtype", "cosine", "shape", "relative", "by", "beyond", "SNR/dB"),
)
MATCHED_BY_TEXT = {
    BY_MAP: "by --map",
    BY_ORDER: "by order and shape",
    BY_FOLD: "folded into one",
    BY_VALUE: "by value",
}


def diff_lines(result: Diff, options: TextOptions) -> list[Text]:
    """Return the table and the verdict."""
    rows = [_row(pair, pair is result.first) for pair in result.rows]
    rows += unmatched_rows(result, len(COLUMNS))
    table = result_table(Table(COLUMNS, tuple(rows), SQUEEZE), options)
    return join_blocks(table, styled_lines(_verdict(result), options), options=options)


def _row(pair: TensorComparison, first: bool) -> Row:
    figures, style = pair.figures, VERDICT_STYLES[pair.verdict]
    beyond = Cell("-") if pair.share is None else share_cell(pair.share, style)
    cells = (
        Cell(pair.key),
        Cell(pair.type, style="cyan"),
        Cell(both_text(*map(shape_text, pair.shapes))),
        Cell(both_text(*pair.dtypes)),
        Cell(pair.by),
        *map(number_cell, (figures.max_abs, figures.max_rel)),
        *(cosine_cell(figures.cosine), number_cell(figures.snr)),
        beyond,
        Cell(pair.verdict, style=style),
    )
    notes = [FIRST_DIFFERENCE_NOTE] if first else []
    notes += [pair.reason] if pair.reason else []
    notes += [f"{MATCHED_BY_TEXT[pair.by]}: {pair.other}"] if pair.by != BY_NAME else []
    note_style = ALERT_STYLE if first or pair.reason else NOTICE_STYLE
    return Row(cells, Cell("; ".join(notes), style=note_style))


def unmatched_rows(result: Diff, columns: int, *, with_tensor: bool = True) -> list[Row]:
    """Return rows for the tensors of one side alone, with or without shape and dtype."""
    sides = [*((tensor, "A") for tensor in result.only_a)]
    sides += [(tensor, "B") for tensor in result.only_b]
    rows = []
    for tensor, side in sides:
        about = (shape_text(tensor.shape), tensor.dtype) if with_tensor else ()
        cells = (Cell(tensor.key), Cell(tensor.type, style="cyan"), *map(Cell, about))
        reason = f": {tensor.reason}" if tensor.reason else ""
        rows.append(unmatched_row(cells, columns, f"only in {side}{reason}"))
    return rows


def _verdict(result: Diff) -> list[tuple[str, str]]:
    """The sentences under the table, each with its style."""
    counts, tensors = result.counts, plural(len(result.rows), "tensor")
    sentences = []
    if result.first is not None:
        text = f"The first difference is at {result.first.key} ({result.first.type})."
        text += f" {count_text(counts[DIFFERS])} of {tensors} differ."
        sentences.append((text, ALERT_STYLE))
        sentences += [(line, NOTICE_STYLE) for line in _module_lines(result)]
    elif result.first_unequal is not None:
        text = f"{tensors} compared: all agree within tolerance, {counts[CLOSE]:,} not exactly"
        sentences.append((f"{text} (the first is {result.first_unequal.key}).", "green"))
    else:
        sentences.append((f"{tensors} compared: all are equal.", "green"))
        if result.a == result.b and "model" in result.a:
            text = "A and B are the same model, with the same weights, input, device and dtype."
            sentences.append((text, NOTICE_STYLE))
    unmatched = tuple(
        (sum(not tensor.reason for tensor in tensors), side)
        for tensors, side in ((result.only_a, "A"), (result.only_b, "B"))
    )
    if text := " and ".join(f"{count_text(n)} in {side}" for n, side in unmatched if n):
        counted = " (a difference with --strict)" if result.strict else ""
        style = ALERT_STYLE if result.strict else NOTICE_STYLE
        sentences.append((f"Without a match: {text}{counted}.", style))
    if exported := sum(bool(tensor.reason) for tensor in (*result.only_a, *result.only_b)):
        text = f"Folded or left out by the exporter: {plural(exported, 'tensor')}."
        sentences.append((text, ""))
    if result.engines:
        row = next((row for row in result.rows if row.rtol), result.rows[0])
        text = f"Tolerance for two engines: {row.rtol:g} of the largest value of a tensor"
        sentences.append((f"{text}, and of each value. --atol and --rtol replace it.", ""))
    return sentences


def _module_lines(result: Diff) -> list[str]:
    """What is known of the first module that differs, and of the parameters."""
    module, lines = result.module, []
    if module is None:
        return []
    lines += [
        f"{name} in {side}: {text}."
        for name, side, text in zip(module.names, "AB", module.descriptions, strict=True)
        if text
    ]
    if 2 * module.model_unequal > module.model_compared:
        lines.append(
            f"{count_text(module.model_unequal)} of {plural(module.model_compared, 'parameter')}"
            " with the same name differ: A and B are different models. Give the weights that were"
            " exported: --weights FILE, or --seed N of random weights."
        )
    elif module.unequal:
        lines.append(f"Different in A and B: {', '.join(module.unequal)}.")
    elif module.transposed:
        lines.append(f"Stored transposed in one of the two: {', '.join(module.transposed)}.")
    elif module.equal:
        lines.append("Its parameters are equal in A and B.")
    return lines


def diff_chart(result: Diff) -> ErrorChart:
    """Return the error of each tensor."""
    # A page needs jinja2, which takes longer to load than many files take to compare.
    from hookscope.views.error_chart import ErrorChart, ErrorLine, compared_text

    rows = result.rows
    return ErrorChart(
        "Errors of B against A, tensor by tensor",
        compared_text(result.a, result.b),
        "tensor",
        [row.key for row in rows],
        [row.key.rpartition("/")[0] for row in rows],
        [ErrorLine("relative error", [row.error for row in rows])],
        None if result.first is None else rows.index(result.first),
        "is the first that differs",
    )


def write_diff_page(result: Diff, path: Path) -> int:
    """Write the page of a comparison; return its size in bytes."""
    return diff_chart(result).page(result).write(path)


VIEW: View[Diff] = View(
    diff_lines,
    json_document("diff"),
    write_diff_page,
    lambda result, dpi: diff_chart(result).draw(),
    (*COLUMNS, NOTE),
)
