"""Similarities of layers as text: a matrix with colours, and in a pipe a line for each pair."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from rich.text import Text

from hookscope.errors import RequestError
from hookscope.escapes import visible
from hookscope.files.words import count_text, near_one_text, number_text, plural
from hookscope.results.layer_similarity import ComparedFolder, LayerSimilarity
from hookscope.specs.features_options import MEASURES
from hookscope.specs.patterns import layer_text
from hookscope.views.display import View, filed_document
from hookscope.views.html.analysis_page import LEVELS, AnalysisPage, color_class
from hookscope.views.images.colors import ColorScale
from hookscope.views.images.figures.canvas import (
    MIN_WIDTH,
    draw_image,
    escape_text,
    finish_figure,
    label_inches,
    name_ticks,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing, paper_style
from hookscope.views.layer_map import CELL_FONT, LayerMap, heat_map_lines, page_map, write_cells
from hookscope.views.text.shared_parts import NOTICE_STYLE, number_cell, styled_lines
from hookscope.views.text.table import Cell, Column, Row, Table
from hookscope.views.text.text_table import (
    TextOptions,
    join_blocks,
    result_table,
    sentence,
    table_lines,
)

_NAME_SHARE = 0.4  # of the width, for the names of layers

_LEAST_CELL, _LARGEST = 0.34, 1.2  # inches of a cell in the figure: at least, and at most
_NUMBERED = 24  # layers up to which a cell has its number
_LABELLED = 128  # layers up to which each has its name
MOST_LAYERS = 2000  # on a side: a pixel or so each


def similarity_lines(result: LayerSimilarity, options: TextOptions) -> list[Text]:
    """Return the matrix; in a pipe a line for each pair of layers."""
    notes = styled_lines(((note, NOTICE_STYLE) for note in result.notes), options)
    if options.lists_rows or options.is_page or options.width is None:
        return join_blocks(_pair_table(result, options), notes, options=options)
    return join_blocks(
        sentence(similarity_title(result), options, "bold"),
        _matrix(result, options),
        _best(result, options) if result.b is not None else [],
        notes,
        options=options,
    )


def similarity_title(result: LayerSimilarity) -> str:
    """Return a sentence with the measure, the folders and the number of inputs."""
    rows = f"{count_text(result.rows)} inputs"
    if result.b is None:
        return f"{result.title} of the layers in {result.a.folder} ({result.a.model}), {rows}."
    return (
        f"{result.title} of the layers in A, {result.a.folder} ({result.a.model}), and B,"
        f" {result.b.folder} ({result.b.model}), {rows}."
    )


def short_names(folder: ComparedFolder) -> list[str]:
    """Return the names of layers: without ``/output`` if no other layer has the same name.

    >>> from hookscope.results.layer_similarity import ComparedLayer
    >>> keys = ("fc/output", "conv/output", "conv/input")
    >>> short_names(ComparedFolder("f", "m", tuple(ComparedLayer(key, ()) for key in keys)))
    ['fc', 'conv/output', 'conv/input']
    """
    modules = [layer.key.rpartition("/")[0] for layer in folder.layers]
    return [
        layer_text(module) if modules.count(module) == 1 else layer.key
        for module, layer in zip(modules, folder.layers, strict=True)
    ]


def _pair_table(result: LayerSimilarity, options: TextOptions) -> list[Text]:
    names, others = short_names(result.a), short_names(result.columns)
    columns = (
        Column("layer" if result.b is None else "layer of A"),
        Column("other" if result.b is None else "layer of B"),
        Column(result.measure, right=True),
    )
    rows = [
        Row.of(Cell(name), Cell(others[j]), number_cell(value))
        for i, (name, values) in enumerate(zip(names, result.values, strict=True))
        for j, value in enumerate(values)
        if result.b is not None or i < j or len(names) == 1
    ]
    return result_table(Table(columns, tuple(rows), note=""), options)


def similarity_map(result: LayerSimilarity) -> LayerMap:
    """Return the matrix."""
    names, others = short_names(result.a), short_names(result.columns)
    rows = zip(names, result.values, strict=True)
    return LayerMap(
        "",
        names,
        others,
        np.array(result.values, np.float64),
        [list(map(number, values)) for values in result.values],
        [
            [f"{name}, {x}: {number_text(v, 6)}" for x, v in zip(others, values, strict=True)]
            for name, values in rows
        ],
    )


def _matrix(result: LayerSimilarity, options: TextOptions) -> list[Text]:
    """The matrix: the columns have the numbers of the layers of B."""
    matrix = similarity_map(result)
    width = max(5, *(len(text) for row in matrix.texts for text in row))
    names, others = matrix.layers, [visible(name, options.ascii) for name in matrix.columns]
    digits = len(str(max(len(names), len(others)) - 1))
    if result.b is None:
        names = [f"{i:{digits}} {name}" for i, name in enumerate(names)]
    numbers = [f"{j:{width}}" for j in range(len(others))]
    texts = [[f"{text:>{width}}" for text in row] for row in matrix.texts]
    lines, hidden = heat_map_lines(
        replace(matrix, layers=names, columns=numbers, texts=texts),
        similarity_scale(result),
        width,
        options,
        last=False,
        name_share=_NAME_SHARE,
    )
    if hidden:
        text = f"{plural(hidden, 'more column')}: in a wider terminal, a pipe, or a file (-o)."
        lines += sentence(text, options, "dim")
    if result.b is not None:
        listed = ", ".join(f"{j} {name}" for j, name in enumerate(others[: len(others) - hidden]))
        lines += sentence(f"Columns are layers of B: {listed}.", options, "dim")
    return lines


def number(value: float) -> str:
    """Return a similarity with two decimals; with more if it would else read as 1.

    >>> number(0.9999), number(1.0), number(-0.5), number(float("nan"))
    ('0.9999', '1.00', '-0.50', '-')
    """
    return "-" if math.isnan(value) else near_one_text(value, 2) or f"{value:.2f}"


def similarity_scale(result: LayerSimilarity) -> ColorScale:
    """Return the colours of a matrix: from 0 to 1, or if values are negative from -1 to 1."""
    lowest = min((v for row in result.values for v in row if not math.isnan(v)), default=0.0)
    negative = MEASURES[result.measure].lowest < 0 and lowest < 0
    return ColorScale(-1.0, 1.0, diverging=True) if negative else ColorScale(0.0, 1.0)


def _best(result: LayerSimilarity, options: TextOptions) -> list[Text]:
    """The most similar layer of B for each layer of A."""
    others = short_names(result.columns)
    rows = []
    for i, name in enumerate(short_names(result.a)):
        best = result.best(i)
        value = math.nan if best is None else result.values[i][best]
        rows.append(
            Row.of(Cell(name), Cell(others[best] if best is not None else "-"), number_cell(value))
        )
    columns = Column("layer of A"), Column("most similar in B"), Column(result.measure, right=True)
    return table_lines(Table(columns, tuple(rows), note=""), options)


def draw_similarity(result: LayerSimilarity) -> Drawing:
    """Draw the matrix: layers of A from top to bottom, those of B to the right."""
    names = [shorten_middle(name, 32) for name in short_names(result.a)]
    others = [shorten_middle(name, 32) for name in short_names(result.columns)]
    most = max(len(names), len(others))
    if most > MOST_LAYERS:
        raise RequestError(
            f"The picture would have {most} layers on a side, and the limit is {MOST_LAYERS}.",
            "Select layers with --layer, or write a table (-o similar.csv).",
        )
    cell = _LEAST_CELL if most <= _LABELLED else 6.0 / most
    left, below = (label_inches(map(escape_text, texts)) for texts in (names, others))
    cell = max(cell, min((MIN_WIDTH - 1.2 - left) / len(others), _LARGEST))
    values = np.array(result.values, np.float64)
    numbers = [["" if v != v else number(v) for v in row] for row in result.values]
    if most <= _NUMBERED:
        cell = max(cell, 1.2 * label_inches(chain(*numbers), CELL_FONT))
    with paper_style(dark=False):
        figure, _ = new_figure(
            left + len(others) * cell + 1.2,
            below + len(names) * cell + 0.3,
            result.title[0].upper() + result.title[1:],
            similarity_title(result),
        )
        axes = figure.subplots()
        scale = similarity_scale(result)
        shown = draw_image(axes, values, scale)
        figure.colorbar(shown, ax=axes, label="similarity", pad=0.02)
        for axis, texts in ((axes.yaxis, names), (axes.xaxis, others)):
            if len(texts) <= _LABELLED:
                name_ticks(axis, texts)
        axes.tick_params(axis="x", rotation=90)
        if result.b is not None:
            axes.set_ylabel("A")
            axes.set_xlabel("B")
        if most <= _NUMBERED:
            write_cells(axes, values, numbers, scale)
        finish_figure(figure)
    size = f"{len(names)} by {len(others)} layers"
    return Drawing(figure, "similar", (f"{result.title}: {size}",))


def write_similarity_page(result: LayerSimilarity, path: Path) -> int:
    """Write the page of a matrix; return its size in bytes."""
    scale = ColorScale(0.0, 1.0)
    levels = [level / LEVELS for level in range(LEVELS + 1)]
    page = AnalysisPage(
        f"Similarity of layers: {result.title}",
        similarity_title(result),
        (
            "1 means the same up to what the measure ignores. Point at a cell for the layers and"
            " more digits; values below 0 have the colour of 0.",
        ),
        result.notes,
        (page_map(similarity_map(result), scale, "layer"),),
        tuple((f"{level:.1f}", color_class(scale, level)) for level in levels),
    )
    return page.write(path)


VIEW: View[LayerSimilarity] = View(
    similarity_lines,
    filed_document("similar"),
    write_similarity_page,
    lambda result, dpi: draw_similarity(result),
)
