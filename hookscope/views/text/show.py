"""Tensors of a file, one by one: statistics, a histogram, the largest entries; and provenance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from hookscope.views.images.values import Bin, Look
from hookscope.views.text.lower import blocks, lower, sentence
from hookscope.views.text.marks import not_finite
from hookscope.views.text.records import LOUD, number_cell
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import count, full, per_cent, real, shape_text

NUMBERS = ("mean", "std", "min", "max", "norm")
COLUMNS = (
    *(Column("tensor"), Column("type"), Column("shape"), Column("dtype")),
    *(Column(title, right=True) for title in (*NUMBERS, "zeros")),
)
SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in NUMBERS),
    *(("drop", title) for title in ("type", "dtype", "norm", "std", "note", "zeros", "mean")),
)
BAR = 40  # cells of the longest bar, where there is room
ROOM = 40  # cells that stand before the bars
PARTS = " ▏▎▍▌▋▊▉█"


def look_lines(look: Look, width: int | None, ascii: bool = False) -> list[Text]:
    """Return what a tensor holds: statistics, histogram, largest entries, what is not finite.

    Args:
        look: the tensor, or a part of it.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    return blocks(
        _stats_table(look, width, ascii),
        histogram_table(look.histogram, width, ascii) if look.histogram else [],
        _largest_table(look, width, ascii) if look.largest else [],
        _odd_lines(look, width, ascii),
        width=width,
    )


def _stats_table(look: Look, width: int | None, ascii: bool) -> list[Text]:
    stats = look.stats
    zeros = Cell(per_cent(stats.zero_share), full=full(stats.zero_share))
    cells = (
        Cell(f"{look.record.key}{look.part}"),
        Cell(look.record.type, style="cyan"),
        Cell(shape_text(look.shape)),
        Cell(look.record.dtype),
        *map(number_cell, (stats.mean, stats.std, stats.min, stats.max, stats.norm)),
        zeros if stats.numel else Cell("-"),
    )
    note = Cell(not_finite(stats) or ("" if stats.numel else "empty"), style=LOUD)
    return lower(Table(COLUMNS, (Row(cells, note),), SQUEEZE), width, ascii)


def histogram_table(bins: tuple[Bin, ...], width: int | None, ascii: bool) -> list[Text]:
    """Return a row for each bin; on a terminal with a bar as long as its count is large."""
    most = max(one.count for one in bins)
    room = max(min(BAR, (width or 0) - ROOM), 6)
    rows = [
        Row(
            (
                Cell(real(one.low), full=full(one.low)),
                Cell(real(one.high), full=full(one.high)),
                Cell(count(one.count), full=str(one.count)),
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
    return lower(Table(tuple(columns), tuple(rows), squeeze, note=""), width, ascii)


def _bar(cells: float, ascii: bool) -> str:
    """A bar of so many cells; whatever there is gets an eighth of one."""
    if ascii:
        return "#" * max(round(cells), cells > 0)
    eighths = max(round(cells * 8), cells > 0)
    return "█" * (eighths // 8) + PARTS[eighths % 8].strip()


def _largest_table(look: Look, width: int | None, ascii: bool) -> list[Text]:
    rows = [
        Row((Cell(f"[{','.join(map(str, entry.index))}]"), number_cell(entry.value)))
        for entry in look.largest
    ]
    columns = (Column("largest entries"), Column("value", right=True))
    return lower(Table(columns, tuple(rows), note=""), width, ascii)


def _odd_lines(look: Look, width: int | None, ascii: bool) -> list[Text]:
    lines: list[Text] = []
    named = ((look.stats.nan, "NaN", look.first_nan), (look.stats.inf, "infinite", look.first_inf))
    for number, what, first in named:
        if first is not None:
            where = f"the first at [{','.join(map(str, first))}]"
            entries = "entry" if number == 1 else "entries"
            lines += sentence(f"{count(number)} {what} {entries}, {where}.", width, ascii, LOUD)
    return lines


def provenance_lines(
    metadata: dict[str, Any], width: int | None, ascii: bool = False
) -> list[Text]:
    """Return where something came from, one line for each fact of its metadata."""
    rows = [Row((Cell(name), Cell(text))) for name, text in _facts(metadata, "")]
    table = Table((Column("provenance"), Column("value")), tuple(rows), note="")
    if width is None:
        return lower(table, None, ascii)
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
