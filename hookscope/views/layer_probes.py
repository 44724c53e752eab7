"""Probes of layers as text: a row for each layer, and the score without features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hookscope.files.words import count_text, number_text, plural, shape_text
from hookscope.results.layer_probes import LayerProbes
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, filed_document
from hookscope.views.images.figures.canvas import (
    SERIES,
    add_legend,
    draw_gridlines,
    escape_text,
    finish_figure,
    label_inches,
    name_ticks,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing, paper_style
from hookscope.views.text.shared_parts import NOTICE_STYLE, number_cell, styled_lines
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR = 20  # cells of a score of 1

_STEP, _HEIGHT = 0.3, 2.6  # inches of a layer, and of the panel
_WIDEST = 14.0  # inches of all layers
_LEGEND = 1.6  # inches of the legend beside the panel
_LABELLED = 60  # layers up to which each has its name


def probe_lines(result: LayerProbes, options: TextOptions) -> list[Text]:
    """Return the table of layers, and the score without features."""
    columns = (
        *(Column("layer"), Column("shape of a row"), Column(result.score, right=True)),
        *(Column("std", right=True), Column("on training rows", "train", right=True)),
        Column(""),
    )
    squeeze = (
        *drop(""),
        *shorten("on training rows"),
        *drop("shape of a row", "on training rows", "std"),
    )
    bars = options.width is not None and not options.is_page
    rows = [
        Row.of(
            Cell(probed_name(layer.key)),
            Cell(shape_text(layer.shape)),
            number_cell(layer.mean),
            number_cell(layer.spread),
            number_cell(layer.train_mean),
            Cell(_bar(layer.mean, options.ascii) if bars else ""),
        )
        for layer in result.layers
    ]
    shown = columns if bars else columns[:-1]
    cut = [row if bars else Row(row.cells[:-1]) for row in rows]
    table = result_table(Table(shown, tuple(cut), squeeze, note=""), options)
    lines = sentence(probe_title(result), options)
    lines += styled_lines(((note, NOTICE_STYLE) for note in result.notes), options)
    return join_blocks(table, lines, options=options)


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

    >>> probed_name("fc/output"), probed_name("fc/input")
    ('fc', 'fc/input')
    """
    module, _, what = key.rpartition("/")
    return layer_text(module) if what == "output" else key


def _bar(score: float, ascii: bool) -> str:
    cells = round(max(min(score, 1.0), 0.0) * _BAR) if score == score else 0
    return ("#" if ascii else "█") * cells


def draw_probes(result: LayerProbes) -> Drawing:
    """Draw the mean of each layer with its deviation over the splits, and training scores."""
    names = [shorten_middle(probed_name(layer.key), 32) for layer in result.layers]
    step = min(_STEP, _WIDEST / len(names))
    labelled = len(names) <= _LABELLED
    below = label_inches(map(escape_text, names)) if labelled else 0.3
    with paper_style(dark=False):
        title = f"Held-out {result.score} of probes of {result.labels}"
        figure, _ = new_figure(
            len(names) * step + 1.0 + _LEGEND,
            _HEIGHT + below,
            title,
            f"{result.model}. {probe_title(result)}",
        )
        axes = figure.subplots()
        _draw_scores(axes, result)
        axes.set_ylabel(result.score.replace("R2", "R²"))
        if labelled:
            name_ticks(axes.xaxis, names)
            axes.tick_params(axis="x", rotation=90)
        else:
            axes.set_xlabel("number of the layer")
        draw_gridlines(axes)
        add_legend(axes)
        finish_figure(figure)
    return Drawing(figure, "probe", (f"{result.score} of {len(names)} layers",))


def _draw_scores(axes: Axes, result: LayerProbes) -> None:
    import numpy as np

    positions = np.arange(len(result.layers))
    means = np.array([layer.mean for layer in result.layers])
    spread = np.nan_to_num(np.array([layer.spread for layer in result.layers]))
    train = np.array([layer.train_mean for layer in result.layers])
    axes.plot(
        *(positions, train),
        color=SERIES[1],
        marker="s",
        markersize=3,
        linewidth=0.8,
        linestyle="--",
        label="on training rows",
    )
    axes.errorbar(
        *(positions, means, spread),
        color=SERIES[0],
        marker="o",
        markersize=4,
        linewidth=1.2,
        capsize=2,
        label="held out (mean, std)",
    )
    axes.axhline(result.baseline, color="#6b7178", linewidth=0.8, label="without features")


VIEW: View[LayerProbes] = View(
    probe_lines, filed_document("probe"), picture=lambda result, dpi: draw_probes(result)
)
