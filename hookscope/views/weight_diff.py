"""Two sets of weights compared, as text: a row for each changed tensor, and the verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from rich.text import Text

from hookscope.file_analysis.weight_diff import WeightChange, WeightDiff
from hookscope.files.words import (
    bytes_text,
    cosine_text,
    count_text,
    number_text,
    percent_text,
    plural,
    shape_text,
    short_count_text,
)
from hookscope.results.diff_result import CLOSE, DIFFERS, EQUAL
from hookscope.stores.weights.weight_set import WeightTensor
from hookscope.views.display import View, json_document
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    VERDICT_STYLES,
    both_text,
    cosine_cell,
    join_names,
    number_cell,
    share_cell,
    styled_lines,
    unmatched_row,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table

COLUMNS = (
    Column("tensor"),
    Column("shape"),
    Column("dtype", optional=True),
    Column("distance", "dist", right=True),
    Column("norm change", "norm", right=True),
    Column("cosine", right=True),
    Column("largest", right=True),
    Column("changed", right=True),
    Column("verdict", optional=True),
)
SQUEEZE = (
    *shorten("norm change", "cosine", "largest", "distance"),
    *drop("dtype", "norm change", "cosine", "verdict", "shape", "largest", "changed"),
)
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole part of a name


def weight_diff_lines(result: WeightDiff, options: TextOptions) -> list[Text]:
    """Return the table of what changed, and the verdict."""
    rows = [_row(row) for row in result.rows if row.verdict != EQUAL]
    for tensors, side in ((result.only_a, "A"), (result.only_b, "B")):
        groups = _grouped(tensors) if options.width is not None else [[one] for one in tensors]
        rows += [_unmatched_row(group, side) for group in groups]
    table = result_table(Table(COLUMNS, tuple(rows), SQUEEZE), options) if rows else []
    parts = (*_verdict(result), *_sides(result), *_notes(result, options))
    return join_blocks(table, styled_lines(parts, options), options=options)


def _row(row: WeightChange) -> Row:
    style, measures = VERDICT_STYLES[row.verdict], row.measures
    notes = []
    numbers: tuple[float | None, ...] = (None,) * 4
    if measures is None:
        notes.append("another shape")
    else:
        numbers = measures.distance, measures.norm_change, measures.cosine, measures.largest
        counts = (("A alone", measures.nan_a), ("B alone", measures.nan_b))
        notes += [f"NaN in {side}: {count_text(count)}" for side, count in counts if count]
        notes += ["A is zero"] if measures.from_zero else []
    cells = (
        Cell(row.name),
        Cell(both_text(*map(shape_text, row.shapes))),
        Cell(both_text(*row.dtypes)),
        *map(number_cell, numbers[:2]),
        *(cosine_cell(numbers[2]), number_cell(numbers[3])),
        Cell("-") if row.share is None else share_cell(row.share, style),
        Cell(row.verdict, style=style),
    )
    return Row(cells, Cell("; ".join(notes), style=ALERT_STYLE))


def _grouped(tensors: Iterable[WeightTensor]) -> list[list[WeightTensor]]:
    """Tensors whose names differ in numbers alone, such as those of the layers of a transformer."""
    groups: dict[tuple[str, tuple[int, ...], str], list[WeightTensor]] = {}
    for tensor in tensors:
        key = _NUMBER.sub("*", tensor.name), tensor.shape, tensor.dtype
        groups.setdefault(key, []).append(tensor)
    return list(groups.values())


def _unmatched_row(group: list[WeightTensor], side: str) -> Row:
    first, note = group[0], f"only in {side}"
    name = first.name
    if len(group) > 1:
        name = _NUMBER.sub("*", name)
        note += f", {count_text(len(group))} tensors"
    cells = Cell(name), Cell(shape_text(first.shape)), Cell(first.dtype)
    return unmatched_row(cells, len(COLUMNS), note)


def _verdict(result: WeightDiff) -> list[tuple[str, str]]:
    """The sentences under the table, each with its style."""
    counts, tensors = result.counts, plural(len(result.rows), "tensor")
    total, sentences = result.total, []
    if result.renamed:
        every = plural(min(result.a.tensors, result.b.tensors), "name")
        text = (
            f"No name is in both A and B. With {result.renamed} {count_text(len(result.rows))} of"
        )
        sentences.append((f"{text} {every} match, and this is that comparison.", ALERT_STYLE))
    tolerant = bool(result.atol or result.rtol)
    if counts[DIFFERS]:
        text = f"{count_text(counts[DIFFERS])} of {tensors} in both differ"
        text += " beyond tolerance" if tolerant else ""
        text += f" ({count_text(counts[CLOSE])} within it)" if counts[CLOSE] else ""
        equal = f", {count_text(counts[EQUAL])} {'is' if counts[EQUAL] == 1 else 'are'} equal"
        text += f"{equal if counts[EQUAL] else ''}."
        sentences.append((text, ALERT_STYLE))
    elif counts[CLOSE]:
        text = f"{tensors} in both: all agree within tolerance, {count_text(counts[CLOSE])} not"
        sentences.append((f"{text} exactly.", "green"))
    else:
        sentences.append((f"{tensors} in both: all are equal.", "green"))
    if total.changed:
        share = percent_text(total.changed / result.numel)
        entries = "entry" if result.numel == 1 else "entries"
        text = f"{count_text(total.changed)} of {count_text(result.numel)} {entries} changed"
        measures = (
            f"distance {number_text(total.distance)}, norm change {number_text(total.norm_change)},"
            f" cosine {cosine_text(total.cosine)}"
        )
        sentences.append((f"{text} ({share}). In total: {measures}.", ""))
    dtypes = Counter(row.dtypes for row in result.rows if row.dtypes[0] != row.dtypes[1])
    if dtypes:
        changes = (f"{a} to {b} ({plural(n, 'tensor')})" for (a, b), n in dtypes.items())
        style = ALERT_STYLE if result.strict else NOTICE_STYLE
        sentences.append((f"Changed dtypes: {', '.join(changes)}.", style))
    alone = ((len(result.only_a), "A"), (len(result.only_b), "B"))
    if text := " and ".join(f"{plural(n, 'tensor')} only in {side}" for n, side in alone if n):
        sentences.append((f"{text[0].upper()}{text[1:]}.", ALERT_STYLE))
    return sentences


def _sides(result: WeightDiff) -> list[tuple[str, str]]:
    sentences = []
    for name, side in (("A", result.a), ("B", result.b)):
        counts = f"{plural(side.tensors, 'tensor')}, {short_count_text(side.parameters)} entries"
        text = f"{name}: {side.path} ({side.kind}), {counts}, {bytes_text(side.nbytes)}."
        sentences.append((text, "dim"))
    return sentences


def _notes(result: WeightDiff, options: TextOptions) -> list[tuple[str, str]]:
    notes = [(note, NOTICE_STYLE) for note in result.notes]
    if result.tied:
        text = f"{plural(len(result.tied), 'tied tensor')} not compared again"
        notes.append((f"{text}: {join_names(result.tied, options)}.", "dim"))
    return notes


VIEW: View[WeightDiff] = View(weight_diff_lines, json_document("diff"), columns=(*COLUMNS, NOTE))
