"""What came of a comparison: a row for each pair, what has no partner, the verdict."""

from __future__ import annotations

from rich.text import Text

from hookscope.results.diff.result import (
    BY_MAP,
    BY_NAME,
    BY_ORDER,
    CLOSE,
    DIFFERS,
    Diff,
    Lone,
    Pair,
)
from hookscope.views.text.lower import blocks, lower, sentence
from hookscope.views.text.records import LOUD, QUIET, number_cell
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text import count, full, per_cent, plural, shape_text

COLUMNS = (
    Column("tensor"),
    Column("type"),
    Column("shape"),
    Column("dtype", dull=True),
    Column("by", dull=True),
    Column("absolute", "abs", right=True),
    Column("relative", "rel", right=True),
    Column("cosine", right=True),
    Column("SNR/dB", "SNR", right=True),
    Column("beyond", right=True),
    Column("verdict"),
)
SQUEEZE: tuple[Squeeze, ...] = (
    *(("shorten", title) for title in ("absolute", "relative", "cosine", "SNR/dB")),
    *(("drop", title) for title in ("note", "type", "dtype", "cosine", "shape", "relative")),
    *(("drop", title) for title in ("by", "beyond", "SNR/dB")),
)
STYLES = {DIFFERS: LOUD, CLOSE: QUIET}
HOW = {BY_MAP: "by --map", BY_ORDER: "by order and shape"}
FIRST = "the first that differs"


def diff_lines(result: Diff, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the table and the verdict.

    Args:
        result: the comparison.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    rows = [_row(pair, pair is result.first) for pair in result.rows]
    rows += [_lone(one, "A") for one in result.only_a]
    rows += [_lone(one, "B") for one in result.only_b]
    table = lower(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)
    told = [
        line for text, style in _verdict(result) for line in sentence(text, width, ascii, style)
    ]
    return blocks(table, told, width=width)


def _row(pair: Pair, first: bool) -> Row:
    figures, style = pair.figures, STYLES.get(pair.verdict, "")
    beyond = Cell("-")
    if pair.share is not None:
        beyond = Cell(per_cent(pair.share), full=full(pair.share), style=style)
    cells = (
        Cell(pair.key),
        Cell(pair.type, style="cyan"),
        Cell(_both(*map(shape_text, pair.shapes))),
        Cell(_both(*pair.dtypes)),
        Cell(pair.by),
        *map(number_cell, (figures.max_abs, figures.max_rel, figures.cosine, figures.snr)),
        beyond,
        Cell(pair.verdict, style=style),
    )
    told = [FIRST] if first else []
    told += [pair.reason] if pair.reason else []
    told += [f"{HOW[pair.by]}: {pair.other}"] if pair.by != BY_NAME else []
    return Row(cells, Cell("; ".join(told), style=LOUD if first or pair.reason else QUIET))


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a}, {b}"


def _lone(one: Lone, side: str) -> Row:
    cells = (
        Cell(one.key),
        Cell(one.type, style="cyan"),
        Cell(shape_text(one.shape)),
        Cell(one.dtype),
    )
    empty = [Cell()] * (len(COLUMNS) - len(cells))
    return Row((*cells, *empty), Cell(f"in {side} alone", style=QUIET), gone=True)


def _verdict(result: Diff) -> list[tuple[str, str]]:
    """The sentences under the table, each with its style."""
    counts, every = result.counts, len(result.rows)
    told = []
    if result.first is not None:
        first = f"The first that differs is {result.first.key} ({result.first.type})."
        told.append(
            (f"{first} {count(counts[DIFFERS])} of {plural(every, 'tensor')} differ.", LOUD)
        )
    elif result.first_unequal is not None:
        text = f"All of {plural(every, 'tensor')} agree within tolerance, {counts[CLOSE]:,} of them"
        told.append((f"{text} not exactly; the first is {result.first_unequal.key}.", "green"))
    else:
        told.append((f"{plural(every, 'tensor')}, and all are equal.", "green"))
    lone = [(len(found), side) for found, side in ((result.only_a, "A"), (result.only_b, "B"))]
    if text := " and ".join(f"{count(number)} in {side}" for number, side in lone if number):
        counted = "; with --strict they count" if result.strict else ""
        told.append((f"Without a partner: {text}{counted}.", LOUD if result.strict else QUIET))
    return told
