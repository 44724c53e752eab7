"""Probes of layers as text: a row for each layer, and the score without features."""

from __future__ import annotations

from rich.text import Text

from hookscope.files.words import count_text, number_text, plural, shape_text
from hookscope.results.layer_probes import LayerProbes
from hookscope.specs.patterns import layer_text
from hookscope.views.text.shared_parts import NOTICE_STYLE, number_cell
from hookscope.views.text.table import Cell, Column, Row, Squeeze, Table
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

_BAR = 20  # cells of a score of 1


def probe_lines(result: LayerProbes, options: TextOptions) -> list[Text]:
    """Return the table of layers, and the score without features.

    Args:
        result: the probes.
        options: where the lines are printed.
    """
    columns = (
        *(Column("layer"), Column("shape of a row"), Column(result.score, right=True)),
        *(Column("std", right=True), Column("on training rows", "train", right=True)),
        Column(""),
    )
    squeeze: tuple[Squeeze, ...] = (
        ("drop", ""),
        ("shorten", "on training rows"),
        *(("drop", title) for title in ("shape of a row", "on training rows", "std")),
    )
    bars = options.width is not None and not options.html
    rows = [
        Row(
            (
                Cell(probed_name(layer.key)),
                Cell(shape_text(layer.shape)),
                number_cell(layer.mean),
                number_cell(layer.spread),
                number_cell(layer.train_mean),
                Cell(_bar(layer.mean, options.ascii) if bars else ""),
            )
        )
        for layer in result.layers
    ]
    shown = columns if bars else columns[:-1]
    cut = [row if bars else Row(row.cells[:-1]) for row in rows]
    table = result_table(Table(shown, tuple(cut), squeeze, note=""), options)
    lines = [line for text in (probe_title(result),) for line in sentence(text, options)]
    notes = [line for note in result.notes for line in sentence(note, options, NOTICE_STYLE)]
    return join_blocks(table, [*lines, *notes], options=options)


def probe_title(result: LayerProbes) -> str:
    """Return a sentence with the method, the rows, the splits and the score without features."""
    split = result.splits[0]
    classes = f" of {len(result.classes)} classes" if result.classes else ""
    return (
        f"{result.method.capitalize()} regression of {result.labels}: held-out {result.score}, mean"
        f" of {plural(len(result.splits), 'split')} (seeds from {split.seed}),"
        f" {count_text(split.train)} rows{classes} to fit and {count_text(split.test)} to score."
        f" Without features: {number_text(result.baseline)}."
    )


def probed_name(key: str) -> str:
    """Return the name of a layer; with what is recorded unless that is its output.

    Example:
        >>> probed_name("fc/output"), probed_name("fc/input")
        ('fc', 'fc/input')
    """
    module, _, what = key.rpartition("/")
    return layer_text(module) if what == "output" else key


def _bar(score: float, ascii: bool) -> str:
    cells = round(max(min(score, 1.0), 0.0) * _BAR) if score == score else 0
    return ("#" if ascii else "█") * cells
