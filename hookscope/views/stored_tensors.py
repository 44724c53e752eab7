"""One tensor of a file as text: statistics, a histogram, the largest entries; and provenance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from hookscope.escapes import visible
from hookscope.files.words import count_text, plural, shape_text
from hookscope.results.records import Recording
from hookscope.specs.tensor_key import WEIGHT
from hookscope.views.capture import capture_document
from hookscope.views.display import View, make_document
from hookscope.views.images.tensor_view import Bin, TensorSummary, TensorView
from hookscope.views.text.shared_parts import ALERT_STYLE, nonfinite_note, number_cell, share_cell
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import (
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)

NUMBERS = ("mean", "std", "min", "max", "norm")
COLUMNS = (
    *(Column("tensor"), Column("type"), Column("shape"), Column("dtype")),
    *(Column(title, right=True) for title in (*NUMBERS, "zeros")),
)
SQUEEZE = (*shorten(*NUMBERS), *drop("type", "dtype", "norm", "std", "note", "zeros", "mean"))
MAX_BAR_WIDTH = 40  # cells of the longest bar, if the terminal is wide enough
WIDTH_BEFORE_BARS = 40  # cells of the columns before the bars
EIGHTHS = " ▏▎▍▌▋▊▉█"

STATISTICS_COLUMNS = (
    *(Column("tensor"), Column("shape"), Column("dtype", optional=True)),
    *(Column(title, right=True) for title in (*NUMBERS, "zeros")),
)
STATISTICS_SQUEEZE = (
    *shorten(*NUMBERS),
    *drop("dtype", "note", "norm", "zeros", "shape", "std", "mean"),
)


def tensor_lines(view: TensorView, options: TextOptions) -> list[Text]:
    """Return what a tensor holds: statistics, histogram, largest and non-finite entries."""
    return join_blocks(
        _stats_table(view, options),
        histogram_table(view.histogram, options) if view.histogram else [],
        _largest_table(view, options) if view.largest else [],
        [*_nonfinite_lines(view, options), *_padding_lines(view, options)],
        options=options,
    )


def _stats_table(view: TensorView, options: TextOptions) -> list[Text]:
    if view.record.kind == WEIGHT:  # no module, so no type
        return statistics_lines([view], options)
    rows = (_statistics_row(view, Cell(view.record.type, style="cyan")),)
    return table_lines(Table(COLUMNS, rows, SQUEEZE), options)


def histogram_table(bins: tuple[Bin, ...], options: TextOptions) -> list[Text]:
    """Return a row for each bin; on a terminal with a bar in proportion to its count."""
    largest = max(bin.count for bin in bins)
    room = max(min(MAX_BAR_WIDTH, (options.width or 0) - WIDTH_BEFORE_BARS), 6)
    rows = [
        Row.of(
            number_cell(bin.low),
            number_cell(bin.high),
            Cell(count_text(bin.count), value=bin.count),
            Cell(_bar(bin.count / largest * room, options.ascii), style="cyan"),
        )
        for bin in bins
    ]
    columns = [Column("from"), Column("to", right=True), Column("entries", right=True)]
    if options.width is None:  # numbers only, no bars
        rows = [Row(row.cells[:3]) for row in rows]
    else:
        columns.append(Column("histogram"))
    squeeze = drop("to", "entries")
    return table_lines(Table(tuple(columns), tuple(rows), squeeze, note=""), options)


def _bar(cells: float, ascii: bool) -> str:
    """A bar of ``cells``, at least an eighth of a cell if it is not zero."""
    if ascii:
        return "#" * max(round(cells), cells > 0)
    eighths = max(round(cells * 8), cells > 0)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _largest_table(view: TensorView, options: TextOptions) -> list[Text]:
    rows = []
    columns = [Column("largest entries"), Column("value", right=True)]
    labelled = any(entry.tokens for entry in view.largest)
    if labelled:
        columns.append(Column("token"))
    for entry in view.largest:
        cells = [Cell(f"[{','.join(map(str, entry.index))}]"), number_cell(entry.value)]
        if labelled:  # of attention weights, the tokens of the query and of the key
            cells.append(Cell(" to ".join(map(visible, entry.tokens))))
        rows.append(Row(tuple(cells)))
    return table_lines(Table(tuple(columns), tuple(rows), note=""), options)


def _nonfinite_lines(view: TensorView, options: TextOptions) -> list[Text]:
    lines: list[Text] = []
    kinds = ((view.stats.nan, "NaN", view.first_nan), (view.stats.inf, "infinite", view.first_inf))
    for number, kind, first in kinds:
        if first is not None:
            entries = f"{count_text(number)} {kind} {'entry' if number == 1 else 'entries'}"
            text = f"{entries}; the first is at [{','.join(map(str, first))}]."
            lines += sentence(text, options, ALERT_STYLE)
    return lines


def _padding_lines(view: TensorView, options: TextOptions) -> list[Text]:
    if not view.padding:
        return []
    text = f"The statistics leave out {plural(view.padding, 'position')} of padding; the histogram"
    return sentence(f"{text} and the largest entries do not.", options)


def provenance_lines(metadata: dict[str, Any], options: TextOptions) -> list[Text]:
    """Return where a result came from: one line for each value of its metadata."""
    rows = [Row.of(Cell(name), Cell(text)) for name, text in _facts(metadata, "")]
    table = Table((Column("provenance"), Column("value")), tuple(rows), note="")
    if options.width is None:
        return table_lines(table, options)
    texts = [f"{row.cells[0].text}: {row.cells[1].text}" for row in rows]
    return [line for text in texts for line in sentence(text, options)]


def _facts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """The single values of nested metadata, each under its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _facts(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for i, item in enumerate(value):
            yield from _facts(item, f"{name}.{i}")
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value)) or "none"
    else:
        yield name, "none" if value is None else str(value)


def show_document(
    capture: Recording, file: str, views: Sequence[TensorView] = ()
) -> dict[str, Any]:
    """Return what a file holds: ``file``, then ``recording`` or the ``tensors`` of some views."""
    tensors = list(map(tensor_document, views))
    recording = None if views else capture_document(capture, file)
    return make_document("show", {"file": file, "recording": recording, "tensors": tensors or None})


def tensor_document(summary: TensorSummary) -> dict[str, Any]:
    """Return one tensor of a document, with the histogram if its values were read."""
    described = {
        "key": summary.record.key,
        "slice": summary.part,
        "shape": summary.shape,
        "dtype": summary.record.dtype,
        "stats": summary.stats.to_json(),
    }
    if not isinstance(summary, TensorView):
        return described
    return described | {
        "histogram": [asdict(bin) for bin in summary.histogram],
        "largest": [
            {name: value for name, value in asdict(entry).items() if name != "tokens" or value}
            for entry in summary.largest
        ],
        "first_nan": summary.first_nan,
        "first_inf": summary.first_inf,
        **({"padding": summary.padding} if summary.padding else {}),
    }


VIEW: View[TensorView] = View(tensor_lines)


def statistics_lines(summaries: Sequence[TensorSummary], options: TextOptions) -> list[Text]:
    """Return a row with the statistics of each tensor, or of a part of it."""
    rows = tuple(map(_statistics_row, summaries))
    return result_table(Table(STATISTICS_COLUMNS, rows, STATISTICS_SQUEEZE), options)


def _statistics_row(summary: TensorSummary, *type: Cell) -> Row:
    stats, record = summary.stats, summary.record
    cells = (
        *(Cell(f"{record.key}{summary.part}"), *type),
        *(Cell(shape_text(summary.shape)), Cell(record.dtype, style="" if type else "cyan")),
        *map(number_cell, (stats.mean, stats.std, stats.min, stats.max, stats.norm)),
        share_cell(stats.zero_share) if stats.numel else Cell("-"),
    )
    alert = nonfinite_note(stats)
    tied = f"= {record.aliases[0]}" if record.aliases and not type else ""
    note = alert or tied or ("" if stats.numel else "empty")
    return Row(cells, Cell(note, style=ALERT_STYLE if alert or type else "magenta"))
