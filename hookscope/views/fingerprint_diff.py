"""How a model differs from its fingerprint, as text: a row for each tensor, and the verdict."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from hookscope.files.words import count_text, number_text, plural, shape_text
from hookscope.results.diff_result import DIFFERS, EQUAL
from hookscope.results.fingerprint_diff import LIMIT, ROUNDING, EntryChange, FingerprintDiff
from hookscope.specs.patterns import ROOT, layer_text
from hookscope.views.display import View, json_document
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    join_names,
    number_cell,
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
    Column("difference", "diff", right=True),
    Column("rounding", right=True),
    Column("times", right=True),
    Column("verdict"),
)
SQUEEZE = (*shorten("difference", "rounding", "times"), *drop("note", "type", "shape", "rounding"))
_STYLES = {DIFFERS: ALERT_STYLE, ROUNDING: "", EQUAL: ""}


def fingerprint_diff_lines(result: FingerprintDiff, options: TextOptions) -> list[Text]:
    """Return the table, the verdict, and what differs of machines and versions."""
    rows = [_row(row) for row in result.rows]
    for side, keys in zip(result.sides, (result.only_a, result.only_b), strict=True):
        rows += [unmatched_row([Cell(key)], len(COLUMNS), f"only in {side}") for key in keys]
    table = result_table(Table(COLUMNS, tuple(rows), SQUEEZE), options)
    sentences = [*verdict_sentences(result), *_circumstances(result)]
    return join_blocks(table, styled_lines(sentences, options), options=options)


def _row(row: EntryChange) -> Row:
    cells = (
        Cell(row.key),
        Cell(row.type, style="cyan"),
        Cell(shape_text(row.shape)),
        *map(number_cell, (row.error, row.rounding, row.times)),
        Cell(row.verdict, style=_STYLES[row.verdict]),
    )
    return Row(cells, Cell(row.note, style=NOTICE_STYLE))


def verdict_sentences(result: FingerprintDiff) -> list[tuple[str, str]]:
    """Return the sentences of the verdict, each with its style."""
    sentences = []
    if result.first is None:
        sentences.append((_same_text(result), "green"))
    else:
        sentences.append((_first_text(result.first), ALERT_STYLE))
        if later := len(result.changed) - 1:
            text = f"{plural(later, 'later tensor')} {'is' if later == 1 else 'are'} beyond"
            sentences.append((f"{text} {'its' if later == 1 else 'their'} rounding too.", ""))
    for side, keys in zip(result.sides, (result.only_a, result.only_b), strict=True):
        if keys:
            names = join_names(list(keys), TextOptions())
            style = ALERT_STYLE if result.strict else NOTICE_STYLE
            sentences.append((f"Only in {side}: {names}.", style))
    return sentences


def _first_text(first: EntryChange) -> str:
    if first.is_model_input:
        place = f"The inputs differ: {first.key}"
    elif first.is_input:
        where = "the model itself" if first.origin == ROOT else f"layer {layer_text(first.origin)}"
        place = f"The first difference is made in {where}, on the way to {first.key}"
    else:
        place = f"The first difference is in {first.key} ({first.type})"
    return f"{place}: {_size_text(first)}."


def _size_text(change: EntryChange) -> str:
    if change.error == inf:
        return change.note or "its size is unknown"
    size = f"{number_text(change.error, 3)} of its norm"
    if change.rounding and change.times > LIMIT:
        times = number_text(change.times, 2) if change.times < 100 else _rounded(change.times)
        size += f", {times} times its rounding"
    return f"{size} ({change.note})" if change.note else size


def _rounded(times: float) -> str:
    return count_text(round(times)) if times < inf else "infinitely many"


def _same_text(result: FingerprintDiff) -> str:
    count, equal = plural(len(result.rows), "tensor"), result.equal
    if equal == len(result.rows):
        return f"{count} compared: all are equal."
    largest = result.largest
    assert largest is not None
    return (
        f"{count} compared: none is beyond its rounding, and {count_text(equal)}"
        f" {'is' if equal == 1 else 'are'} equal. The largest difference is"
        f" {number_text(largest.times, 2)} times the rounding, in {largest.key}."
    )


def _circumstances(result: FingerprintDiff) -> list[tuple[str, str]]:
    """The sentence on machines and versions, if tensors differ at all."""
    in_a, in_b = (f"in {side}" for side in result.sides)
    different = [f"{name} {a} {in_a}, {b} {in_b}" for name, a, b in result.circumstances]
    if not different or result.equal == len(result.rows):
        return []
    return [(f"Also different: {'; '.join(different)}.", "")]


def fingerprint_chart(result: FingerprintDiff) -> ErrorChart:
    """Return the difference of each tensor, and its rounding."""
    # A page needs jinja2, which takes longer to load than two fingerprints to compare.
    from hookscope.views.error_chart import ErrorChart, ErrorLine, compared_text

    rows = result.rows
    first = next((n for n, row in enumerate(rows) if row.verdict == DIFFERS), None)
    return ErrorChart(
        "Differences of B from A, tensor by tensor",
        compared_text(result.a.metadata, result.b.metadata),
        "tensor",
        [row.key for row in rows],
        [row.module for row in rows],
        [
            ErrorLine("difference", [row.error for row in rows]),
            ErrorLine("rounding", [row.rounding for row in rows], joined=False),
        ],
        first,
        "is the first beyond its rounding",
    )


def write_fingerprint_page(result: FingerprintDiff, path: Path) -> int:
    """Write the page of a comparison; return its size in bytes."""
    return fingerprint_chart(result).page(result).write(path)


VIEW: View[FingerprintDiff] = View(
    fingerprint_diff_lines,
    json_document("diff"),
    write_fingerprint_page,
    lambda result, dpi: fingerprint_chart(result).draw(),
    (*COLUMNS, NOTE),
)
