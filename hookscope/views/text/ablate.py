"""What knocking out layers did: the table that ranks them, and what its figures mean."""

from __future__ import annotations

import math

from rich.text import Text

from hookscope.results.ablation import Ablation, BaselineMetrics, LayerAblation
from hookscope.views.text.formats import count_text, number_text, plural
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    MAX_NAMES,
    NOTICE_STYLE,
    coverage_lines,
    join_names,
    number_cell,
)
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

MAX_ROWS = 30  # rows on a terminal; a pipe gets all
METHOD_TEXT = {
    "zero": "set to zero",
    "mean": "set to each channel's mean over the batch and all positions",
    "noise": "with noise of its own standard deviation added",
}


def ablation_lines(result: Ablation, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the whole summary: what was done, the ranking, what its figures mean, coverage.

    Args:
        result: the knock-outs.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    figures = _figures(result)
    shown = result.knockouts[: len(result.knockouts) if width is None else MAX_ROWS]
    head = sentence(_title(result), width, ascii, "bold")
    table = [*ablation_table(result, shown, width, ascii), *_more(result, len(shown), width, ascii)]
    meaning = [
        line for text in _meanings(result.clean, figures) for line in sentence(text, width, ascii)
    ]
    told = [*_alert_lines(result, width, ascii), *coverage_lines(result.coverage, width, ascii)]
    told += _left_out_lines(result, width, ascii)
    return join_blocks(head, table, meaning, told, width=width)


def ablation_table(
    result: Ablation, shown: tuple[LayerAblation, ...], width: int | None, ascii: bool = False
) -> list[Text]:
    """Return one row for each of the knock-outs ``shown``, in the order given."""
    if not shown:
        return []
    figures = _figures(result)
    channels = any(knockout.channel is not None for knockout in shown)
    columns = (
        Column("layer"),
        Column("type"),
        *[Column("channel", "ch", right=True)] * channels,
        *(Column(name, right=True) for name in figures),
    )
    squeeze: tuple[Squeeze, ...] = (
        ("shorten", "channel"),
        *(("shorten", name) for name in figures),
        ("drop", "type"),
        *(("drop", name) for name in reversed(figures[1:])),
        ("drop", "note"),
    )
    rows = tuple(_row(knockout, figures, channels) for knockout in shown)
    return table_lines(Table(columns, rows, squeeze), width, ascii)


def _figures(result: Ablation) -> list[str]:
    """The figures that are defined, the one of the ranking first."""
    clean = result.clean
    there = {
        "score": clean.score is not None,
        "loss": clean.loss is not None,
        "output": True,
        "flipped": clean.decisions > 0,
    }
    names = [name for name, defined in there.items() if defined]
    return sorted(names, key=lambda name: name != result.rank)


def _row(knockout: LayerAblation, figures: list[str], channels: bool) -> Row:
    place = [Cell("" if knockout.channel is None else str(knockout.channel))] * channels
    cells = (Cell(knockout.layer), Cell(knockout.type, style="cyan"), *place)
    if knockout.failed:
        note = Cell("failed", full=f"failed: {knockout.failed}", style=ALERT_STYLE)
        return Row((*cells, *[Cell()] * len(figures)), note, gone=True)
    values = [getattr(knockout, name) for name in figures]
    note = Cell(_nonfinite_words(knockout), style=ALERT_STYLE)
    if knockout.output is None:
        note = Cell("another shape", style=NOTICE_STYLE)
    return Row((*cells, *map(number_cell, values)), note)


def _nonfinite_words(knockout: LayerAblation) -> str:
    values = [v for v in (knockout.score, knockout.loss, knockout.output) if v is not None]
    words = {"NaN!": any(map(math.isnan, values)), "Inf!": any(map(math.isinf, values))}
    return " ".join(word for word, found in words.items() if found)


def _title(result: Ablation) -> str:
    channels = any(knockout.channel is not None for knockout in result.knockouts)
    what = plural(result.total, "channel" if channels else "layer")
    return f"Knocked out in turn: {what}, each {METHOD_TEXT[result.by]}; ranked by {result.rank}."


def _more(result: Ablation, shown: int, width: int | None, ascii: bool) -> list[Text]:
    left = len(result.knockouts) - shown
    if not left:
        return []
    text = f"{count_text(left)} more stand below these; a pipe and the file have all."
    return sentence(text, width, ascii, "dim")


def _meanings(clean: BaselineMetrics, figures: list[str]) -> list[str]:
    """A sentence for each figure, with the value that it is the change of."""
    target = f" ({clean.target})" if clean.target else ""
    told = {
        "score": f"change of the target's logit{target}, mean over the batch; it is"
        f" {number_text(clean.score)} in the clean run.",
        "loss": f"change of the loss {clean.loss_name}, which is {number_text(clean.loss)} there.",
        "output": "norm of the difference of the model's output, over the norm of the clean one.",
        "flipped": f"for how many of {plural(clean.decisions, 'decision')} (one an image, or one a"
        " position in it) the likeliest class changed.",
    }
    return [f"{name}: {told[name]}" for name in figures]


def _alert_lines(result: Ablation, width: int | None, ascii: bool) -> list[Text]:
    """What must not be overlooked: nothing moved, no numbers, failures, each cause once."""
    lines: list[Text] = []
    if all(getattr(knockout, result.rank) == 0 for knockout in result.knockouts):
        text = "Nothing moved: the output does not depend on these layers. The last layer of an"
        text += " untrained model may begin as zeros, as those of vision transformers do."
        lines += sentence(text, width, ascii, NOTICE_STYLE)
    odd = sum(1 for knockout in result.knockouts if _nonfinite_words(knockout))
    if odd:
        text = f"{plural(odd, 'knock-out')} gave NaN! or Inf!, and NaN stands first in the ranking."
        lines += sentence(text, width, ascii, ALERT_STYLE)
    causes: dict[str, list[str]] = {}
    for knockout in result.knockouts:
        if knockout.failed:
            channel = "" if knockout.channel is None else f"[{knockout.channel}]"
            causes.setdefault(knockout.failed, []).append(f"{knockout.layer}{channel}")
    for cause, names in causes.items():
        some = None if width is None else MAX_NAMES
        lines += sentence(f"Failed: {join_names(names, some)}. {cause}", width, ascii, ALERT_STYLE)
    return lines


def _left_out_lines(result: Ablation, width: int | None, ascii: bool) -> list[Text]:
    reasons: dict[str, list[str]] = {}
    for layer in result.left_out:
        reasons.setdefault(layer.reason, []).append(layer.layer)
    lines: list[Text] = []
    for reason, names in reasons.items():
        text = f"Left out: {join_names(names, None if width is None else MAX_NAMES)} ({reason})."
        lines += sentence(text, width, ascii, "yellow")
    return lines
