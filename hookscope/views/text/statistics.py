"""The summary of statistics over a whole dataset: one row for each layer."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.files.strict_json import number
from hookscope.results.records import Recording
from hookscope.views.text.lower import blocks, lower, sentence
from hookscope.views.text.records import number_cell
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import count, plural, short_count

NUMBERS = ("mean", "std", "min", "median", "max")
COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("what", dull=True),
    Column("call", right=True, dull=True),
    Column("channels", right=True),
    Column("values", right=True),
    *(Column(title, right=True) for title in NUMBERS),
    Column("dead", right=True),
)
SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in (*NUMBERS, "values")),
    *(("drop", title) for title in ("type", "what", "values", "note", "median", "min", "max")),
    *(("drop", title) for title in ("std", "channels", "call", "mean")),
)


def statistics_lines(recording: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the table: each layer's numbers over all channels, and how many of them are dead.

    Args:
        recording: of a file of statistics.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    rows = tuple(_row(told) for told in recording.metadata["statistics"])
    dead = sum(told["dead"] for told in recording.metadata["statistics"])
    end = f"Over {plural(recording.metadata['rows'], 'input')}: "
    end += f"{plural(dead, 'channel')} never above zero." if dead else "no channel is dead."
    table = lower(Table(COLUMNS, rows, SQUEEZE), width, ascii)
    return blocks(table, sentence(end, width, ascii), width=width)


def _row(told: dict[str, Any]) -> Row:
    values = told["values"]
    cells = (
        Cell(told["module"]),
        Cell(told["type"], style="cyan"),
        Cell(told["what"]),
        Cell(str(told["call"])),
        Cell(count(told["channels"]), full=str(told["channels"])),
        Cell(count(values), short=short_count(values), full=str(values)),
        *(number_cell(number(told[name])) for name in NUMBERS),
        Cell(count(told["dead"]), full=str(told["dead"]), style="yellow" if told["dead"] else ""),
    )
    loud = ", ".join(
        f"{count(told[n])} {t}!" for n, t in (("nan", "NaN"), ("inf", "Inf")) if told[n]
    )
    return Row(cells, Cell(loud, style="bold red"))
