"""Ablations as text: the table that ranks them, and what its columns mean."""

from __future__ import annotations

import math

from rich.text import Text

from hookscope.files.words import number_text, plural
from hookscope.results.ablation import Ablation, BaselineMetrics, LayerAblation
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, filed_document
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    count_cell,
    coverage_lines,
    failed_lines,
    number_cell,
    skipped_lines,
)
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

MAX_ROWS = 30  # rows on a terminal; a pipe gets all
METHOD_TEXT = {
    "zero": "output set to zero",
    "mean": "each channel set to its mean over the batch and all positions",
    "noise": "noise with the standard deviation of the output added",
}


def ablation_lines(result: Ablation, options: TextOptions) -> list[Text]:
    """Return the whole summary: what was done, the ranking, what its figures mean, coverage."""
    figures = _figures(result)
    head = sentence(_title(result), options, "bold")
    table = ablation_table(result, options)
    meaning = [
        line for text in _meanings(result.clean, figures) for line in sentence(text, options)
    ]
    notes = [
        *_alert_lines(result, options),
        *coverage_lines(result.coverage, options),
        *skipped_lines(result.left_out, options),
    ]
    return join_blocks(head, table, meaning, notes, options=options)


def ablation_table(result: Ablation, options: TextOptions) -> list[Text]:
    """Return one row for each ablation, in their order."""
    if not result.ablations:
        return []
    figures = _figures(result)
    channels = any(ablation.channel is not None for ablation in result.ablations)
    columns = (
        Column("layer"),
        Column("type"),
        *[Column("channel", "ch", right=True)] * channels,
        *(Column(name, right=True) for name in figures),
    )
    squeeze = (*shorten("channel", *figures), *drop("type", *reversed(figures[1:]), "note"))
    rows = tuple(_row(ablation, figures, channels) for ablation in result.ablations)
    return result_table(Table(columns, rows, squeeze), options, MAX_ROWS)


def _figures(result: Ablation) -> list[str]:
    """The figures that are defined, the one of the ranking first."""
    clean = result.clean
    defined = {
        "score": clean.score is not None,
        "loss": clean.loss is not None,
        "output": True,
        "flipped": clean.decisions > 0,
    }
    names = [name for name, exists in defined.items() if exists]
    return sorted(names, key=lambda name: name != result.rank)


def _row(ablation: LayerAblation, figures: list[str], channels: bool) -> Row:
    channel = [Cell() if ablation.channel is None else count_cell(ablation.channel)] * channels
    cells = (Cell(layer_text(ablation.layer)), Cell(ablation.type, style="cyan"), *channel)
    if ablation.failed:
        note = Cell("failed", full=f"failed: {ablation.failed}", style=ALERT_STYLE)
        return Row((*cells, *[Cell()] * len(figures)), note, missing=True)
    values = [getattr(ablation, name) for name in figures]
    note = Cell(_nonfinite_words(ablation), style=ALERT_STYLE)
    if ablation.output is None:
        note = Cell("different shape", style=NOTICE_STYLE)
    return Row((*cells, *map(number_cell, values)), note)


def _nonfinite_words(ablation: LayerAblation) -> str:
    values = [v for v in (ablation.score, ablation.loss, ablation.output) if v is not None]
    words = {"NaN!": any(map(math.isnan, values)), "Inf!": any(map(math.isinf, values))}
    return " ".join(word for word, occurs in words.items() if occurs)


def _title(result: Ablation) -> str:
    channels = any(ablation.channel is not None for ablation in result.ablations)
    what = plural(result.total, "channel" if channels else "layer")
    return f"{what} ablated one at a time ({METHOD_TEXT[result.by]}), ranked by {result.rank}."


def _meanings(clean: BaselineMetrics, figures: list[str]) -> list[str]:
    """A sentence for each figure, with its value in the run without ablations."""
    target = f" ({clean.target})" if clean.target else ""
    meanings = {
        "score": f"change of the target's logit{target}, mean over the batch;"
        f" {number_text(clean.score)} without ablation.",
        "loss": f"change of the loss {clean.loss_name};"
        f" {number_text(clean.loss)} without ablation.",
        "output": "norm of the change of the model's output over the norm of the output without"
        " ablation.",
        "flipped": f"how many of {plural(clean.decisions, 'prediction')} (one per image, or per"
        " position in it) changed to another class.",
    }
    return [f"{name}: {meanings[name]}" for name in figures]


def _alert_lines(result: Ablation, options: TextOptions) -> list[Text]:
    """Warnings: no effect at all, values that are not finite, failures by their reason."""
    lines: list[Text] = []
    if all(getattr(ablation, result.rank) == 0 for ablation in result.ablations):
        text = "Nothing changed: the output does not depend on these layers. The last layer of an"
        text += " untrained model may be initialized to zero, as in vision transformers."
        lines += sentence(text, options, NOTICE_STYLE)
    nonfinite = sum(1 for ablation in result.ablations if _nonfinite_words(ablation))
    if nonfinite:
        text = f"{plural(nonfinite, 'ablation')} gave NaN! or Inf!; NaN is ranked first."
        lines += sentence(text, options, ALERT_STYLE)
    failures = ((one.failed, _name(one)) for one in result.ablations if one.failed)
    return lines + failed_lines(failures, options)


def _name(ablation: LayerAblation) -> str:
    name = layer_text(ablation.layer)
    return name if ablation.channel is None else f"{name}[{ablation.channel}]"


VIEW: View[Ablation] = View(ablation_lines, filed_document("ablate"))
