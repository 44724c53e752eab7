"""Tensors of a file, one by one: statistics, a histogram, the largest entries; and provenance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from hookscope.views.images.tensor_view import Bin, TensorView
from hookscope.views.text.formats import (
    count_text,
    full_text,
    number_text,
    percent_text,
    shape_text,
)
from hookscope.views.text.shared_parts import ALERT_STYLE, nonfinite_note, number_cell
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

NUMBERS = ("mean", "std", "min", "max", "norm")
COLUMNS = (
    *(Column("tensor"), Column("type"), Column("shape"), Column("dtype")),
    *(Column(title, right=True) for title in (*NUMBERS, "zeros")),
)
SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in NUMBERS),
    *(("drop", title) for title in ("type", "dtype", "norm", "std", "note", "zeros", "mean")),
)
MAX_BAR_WIDTH = 40  # cells of the longest bar, where there is room
WIDTH_BEFORE_BARS = 40  # cells that stand before the bars
EIGHTHS = " ▏▎▍▌▋▊▉█"


def tensor_lines(look: TensorView, width: int | None, ascii: bool = False) -> list[Text]:
    """Return what a tensor holds: statistics, histogram, largest entries, what is not finite.

    Args:
        look: the tensor, or a part of it.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    return join_blocks(
        _stats_table(look, width, ascii),
        histogram_table(look.histogram, width, ascii) if look.histogram else [],
        _largest_table(look, width, ascii) if look.largest else [],
        _nonfinite_lines(look, width, ascii),
        width=width,
    )


def _stats_table(look: TensorView, width: int | None, ascii: bool) -> list[Text]:
    stats = look.stats
    zeros = Cell(percent_text(stats.zero_share), full=full_text(stats.zero_share))
    cells = (
        Cell(f"{look.record.key}{look.part}"),
        Cell(look.record.type, style="cyan"),
        Cell(shape_text(look.shape)),
        Cell(look.record.dtype),
        *map(number_cell, (stats.mean, stats.std, stats.min, stats.max, stats.norm)),
        zeros if stats.numel else Cell("-"),
    )
    note = Cell(nonfinite_note(stats) or ("" if stats.numel else "empty"), style=ALERT_STYLE)
    return table_lines(Table(COLUMNS, (Row(cells, note),), SQUEEZE), width, ascii)


def histogram_table(bins: tuple[Bin, ...], width: int | None, ascii: bool) -> list[Text]:
    """Return a row for each bin; on a terminal with a bar as long as its count is large."""
    most = max(one.count for one in bins)
    room = max(min(MAX_BAR_WIDTH, (width or 0) - WIDTH_BEFORE_BARS), 6)
    rows = [
        Row(
            (
                Cell(number_text(one.low), full=full_text(one.low)),
                Cell(number_text(one.high), full=full_text(one.high)),
                Cell(count_text(one.count), full=str(one.count)),
                Cell(_bar(one.count / most * room, ascii), style="cyan"),
            )
        )
        for one in bins
    ]
    columns = [Column("from"), Column("to", right=True), Column("entries", right=True)]
    if width is None:  # the counts are there in full, and nothing is drawn
        rows = [Row(row.cells[:3]) for row in rows]
    else:
        columns.append(Column("histogram"))
    squeeze: tuple[Squeeze, ...] = (("drop", "to"), ("drop", "entries"))
    return table_lines(Table(tuple(columns), tuple(rows), squeeze, note=""), width, ascii)


def _bar(cells: float, ascii: bool) -> str:
    """A bar of so many cells; whatever there is gets an eighth of one."""
    if ascii:
        return "#" * max(round(cells), cells > 0)
    eighths = max(round(cells * 8), cells > 0)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _largest_table(look: TensorView, width: int | None, ascii: bool) -> list[Text]:
    rows = [
        Row((Cell(f"[{','.join(map(str, entry.index))}]"), number_cell(entry.value)))
        for entry in look.largest
    ]
    columns = (Column("largest entries"), Column("value", right=True))
    return table_lines(Table(columns, tuple(rows), note=""), width, ascii)


def _nonfinite_lines(look: TensorView, width: int | None, ascii: bool) -> list[Text]:
    lines: list[Text] = []
    named = ((look.stats.nan, "NaN", look.first_nan), (look.stats.inf, "infinite", look.first_inf))
    for number, what, first in named:
        if first is not None:
            where = f"the first at [{','.join(map(str, first))}]"
            entries = "entry" if number == 1 else "entries"
            lines += sentence(
                f"{count_text(number)} {what} {entries}, {where}.", width, ascii, ALERT_STYLE
            )
    return lines


def provenance_lines(
    metadata: dict[str, Any], width: int | None, ascii: bool = False
) -> list[Text]:
    """Return where something came from, one line for each fact of its metadata."""
    rows = [Row((Cell(name), Cell(text))) for name, text in _facts(metadata, "")]
    table = Table((Column("provenance"), Column("value")), tuple(rows), note="")
    if width is None:
        return table_lines(table, None, ascii)
    told = [sentence(f"{row.cells[0].text}: {row.cells[1].text}", width, ascii) for row in rows]
    return [line for lines in told for line in lines]


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
