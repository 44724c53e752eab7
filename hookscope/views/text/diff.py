"""What came of a comparison: a row for each pair, what has no partner, the verdict."""

from __future__ import annotations

from rich.text import Text

from hookscope.results.diff.diff_result import (
    BY_MAP,
    BY_NAME,
    BY_ORDER,
    CLOSE,
    DIFFERS,
    Diff,
    TensorComparison,
    UnmatchedTensor,
)
from hookscope.views.text.formats import count_text, full_text, percent_text, plural, shape_text
from hookscope.views.text.shared_parts import ALERT_STYLE, NOTICE_STYLE, number_cell
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
STYLES = {DIFFERS: ALERT_STYLE, CLOSE: NOTICE_STYLE}
MATCHED_BY_TEXT = {BY_MAP: "by --map", BY_ORDER: "by order and shape"}
FIRST_DIFFERENCE_NOTE = "the first that differs"


def diff_lines(result: Diff, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the table and the verdict.

    Args:
        result: the comparison.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    rows = [_row(pair, pair is result.first) for pair in result.rows]
    rows += [_unmatched_row(one, "A") for one in result.only_a]
    rows += [_unmatched_row(one, "B") for one in result.only_b]
    table = table_lines(Table(COLUMNS, tuple(rows), SQUEEZE), width, ascii)
    told = [
        line for text, style in _verdict(result) for line in sentence(text, width, ascii, style)
    ]
    return join_blocks(table, told, width=width)


def _row(pair: TensorComparison, first: bool) -> Row:
    figures, style = pair.figures, STYLES.get(pair.verdict, "")
    beyond = Cell("-")
    if pair.share is not None:
        beyond = Cell(percent_text(pair.share), full=full_text(pair.share), style=style)
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
    told = [FIRST_DIFFERENCE_NOTE] if first else []
    told += [pair.reason] if pair.reason else []
    told += [f"{MATCHED_BY_TEXT[pair.by]}: {pair.other}"] if pair.by != BY_NAME else []
    return Row(
        cells, Cell("; ".join(told), style=ALERT_STYLE if first or pair.reason else NOTICE_STYLE)
    )


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a}, {b}"


def _unmatched_row(one: UnmatchedTensor, side: str) -> Row:
    cells = (
        Cell(one.key),
        Cell(one.type, style="cyan"),
        Cell(shape_text(one.shape)),
        Cell(one.dtype),
    )
    empty = [Cell()] * (len(COLUMNS) - len(cells))
    return Row((*cells, *empty), Cell(f"in {side} alone", style=NOTICE_STYLE), gone=True)


def _verdict(result: Diff) -> list[tuple[str, str]]:
    """The sentences under the table, each with its style."""
    counts, every = result.counts, len(result.rows)
    told = []
    if result.first is not None:
        first = f"The first that differs is {result.first.key} ({result.first.type})."
        told.append(
            (
                f"{first} {count_text(counts[DIFFERS])} of {plural(every, 'tensor')} differ.",
                ALERT_STYLE,
            )
        )
    elif result.first_unequal is not None:
        text = f"All of {plural(every, 'tensor')} agree within tolerance, {counts[CLOSE]:,} of them"
        told.append((f"{text} not exactly; the first is {result.first_unequal.key}.", "green"))
    else:
        told.append((f"{plural(every, 'tensor')}, and all are equal.", "green"))
    lone = [(len(found), side) for found, side in ((result.only_a, "A"), (result.only_b, "B"))]
    if text := " and ".join(f"{count_text(number)} in {side}" for number, side in lone if number):
        counted = "; with --strict they count" if result.strict else ""
        told.append(
            (f"Without a partner: {text}{counted}.", ALERT_STYLE if result.strict else NOTICE_STYLE)
        )
    return told
