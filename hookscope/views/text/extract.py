"""What a run over a dataset wrote: its keys, and how many rows each has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from hookscope.views.text.lower import lower, sentence
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import plural, shape_text, visible

COLUMNS = (
    Column("layer"),
    Column("type"),
    Column("what", dull=True),
    Column("call", right=True, dull=True),
    Column("rows", right=True),
    Column("shape of a row"),
    Column("dtype"),
)
SQUEEZE: tuple[Squeeze, ...] = (
    ("drop", "dtype"),
    ("drop", "type"),
    ("drop", "call"),
    ("drop", "what"),
    ("drop", "rows"),
)


def extraction_lines(
    manifest: Mapping[str, Any], width: int | None, ascii: bool = False
) -> list[Text]:
    """Return one row for each key, and a line about the whole.

    Args:
        manifest: of the folder.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    rows = tuple(
        Row(
            (
                Cell(visible(key["module"], ascii)),
                Cell(visible(key["type"], ascii), style="cyan"),
                Cell(visible(key["what"], ascii)),
                Cell(str(key["call"])),
                Cell(str(manifest["rows"])),
                Cell(shape_text(key["shape"]) or "one number"),
                Cell(key["dtype"]),
            )
        )
        for key in manifest["keys"]
    )
    lines = lower(Table(COLUMNS, rows, SQUEEZE, note=""), width, ascii)
    whole = f"{plural(manifest['rows'], 'row')} of {plural(len(manifest['keys']), 'tensor')}."
    if manifest["stopped_after"]:
        whole += f" Each pass ended after {visible(manifest['stopped_after'], ascii)}."
    return [*lines, *sentence(whole, width, ascii, "bold")]
