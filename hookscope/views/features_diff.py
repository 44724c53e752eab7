"""Two features folders compared, as text: a row for each key that differs, and the verdict."""

from __future__ import annotations

from rich.text import Text

from hookscope.file_analysis.features_diff import FeatureChange, FeaturesDiff
from hookscope.files.words import count_text, plural, shape_text
from hookscope.results.diff_result import CLOSE, DIFFERS, EQUAL
from hookscope.views.display import View, json_document
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    VERDICT_STYLES,
    cosine_cell,
    count_cell,
    join_names,
    number_cell,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

COLUMNS = (
    *(Column("key"), Column("shape of a row", "shape"), Column("dtype", optional=True)),
    *(Column("distance", "dist", right=True), Column("cosine", right=True)),
    *(Column("largest", right=True), Column("rows", right=True)),
    *(Column("first row", right=True), Column("verdict", optional=True)),
)
SQUEEZE = (
    *shorten("distance", "cosine", "largest", "shape of a row"),
    *drop("dtype", "cosine", "shape of a row", "verdict", "distance"),
)


def features_diff_lines(result: FeaturesDiff, options: TextOptions) -> list[Text]:
    """Return the table of keys that are not equal, and the verdict."""
    rows = [_row(change) for change in result.changes if change.verdict != EQUAL]
    table = result_table(Table(COLUMNS, tuple(rows), SQUEEZE), options) if rows else []
    counts, keys = result.counts, plural(len(result.changes), "tensor")
    inputs = f"of {plural(result.rows, 'row')} each"
    within = f", {count_text(counts[CLOSE])} agree within tolerance" if counts[CLOSE] else ""
    if counts[DIFFERS]:
        text = f"{count_text(counts[DIFFERS])} of {keys} {inputs} differ{within}."
        lines = sentence(text, options, ALERT_STYLE)
    elif counts[CLOSE]:
        lines = sentence(f"{keys} {inputs}: none differs{within}.", options, "green")
    else:
        lines = sentence(f"{keys} {inputs}: all are equal.", options, "green")
    style = ALERT_STYLE if result.strict else NOTICE_STYLE
    for side, alone in (("A", result.only_a), ("B", result.only_b)):
        if alone:
            lines += sentence(f"Only in {side}: {join_names(alone, options)}.", options, style)
    for note in result.notes:
        lines += sentence(note, options, NOTICE_STYLE)
    return join_blocks(table, lines, options=options)


def _row(change: FeatureChange) -> Row:
    measures, style = change.measures, VERDICT_STYLES[change.verdict]
    shapes = list(dict.fromkeys(map(shape_text, change.shapes)))
    numbers: tuple[float | None, ...] = (None,) * 3
    notes = ["another shape"]
    if measures is not None:
        numbers = measures.distance, measures.cosine, measures.largest
        nan = (("A", measures.nan_a), ("B", measures.nan_b))
        notes = [f"NaN only in {side}: {count_text(count)}" for side, count in nan if count]
    cells = (
        *(Cell(change.key), Cell(", ".join(shapes)), Cell(", ".join(dict.fromkeys(change.dtypes)))),
        *(number_cell(numbers[0]), cosine_cell(numbers[1]), number_cell(numbers[2])),
        Cell("-") if change.rows_beyond is None else count_cell(change.rows_beyond),
        Cell("-") if change.first_row is None else count_cell(change.first_row),
        Cell(change.verdict, style=style),
    )
    return Row(cells, Cell("; ".join(notes), style=ALERT_STYLE))


VIEW: View[FeaturesDiff] = View(
    features_diff_lines, json_document("diff"), columns=(*COLUMNS, NOTE)
)
