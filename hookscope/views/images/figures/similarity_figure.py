"""Similarities of layers as a picture: a matrix of colours, with numbers in a small one."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter

from hookscope.errors import RequestError
from hookscope.results.layer_similarity import LayerSimilarity
from hookscope.views.images.figures.canvas import (
    MIN_WIDTH,
    draw_image,
    escape_text,
    finish_figure,
    label_inches,
    new_figure,
    paper_style,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.text.similar import number, short_names, similarity_scale, similarity_title

_CELL, _LARGEST = 0.34, 1.2  # inches of a cell: of one of many, and at most
_FILLED = MIN_WIDTH - 1.2  # inches that few layers fill with larger cells
_NUMBERED = 24  # layers up to which a cell has its number
_LABELLED = 128  # layers up to which each has its name
MOST_LAYERS = 2000  # on a side: a pixel or so each


def draw_similarity(result: LayerSimilarity) -> Drawing:
    """Draw the matrix: layers of A from top to bottom, those of B to the right.

    Raises:
        RequestError: there are more layers than fit on a picture.
    """
    names = [shorten_middle(name, 32) for name in short_names(result.a)]
    others = [shorten_middle(name, 32) for name in short_names(result.columns)]
    most = max(len(names), len(others))
    if most > MOST_LAYERS:
        raise RequestError(
            f"The picture would have {most} layers on a side, and the limit is {MOST_LAYERS}.",
            "Select layers with --layer, or write a table (-o similar.csv).",
        )
    cell = _CELL if most <= _LABELLED else 6.0 / most
    left, below = (label_inches(map(escape_text, texts)) for texts in (names, others))
    cell = max(cell, min((_FILLED - left) / len(others), _LARGEST))
    values = np.array(result.values, np.float64)
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
                axis.set_major_locator(FixedLocator(list(range(len(texts)))))
                escaped = [escape_text(text) for text in texts]
                axis.set_major_formatter(FuncFormatter(lambda at, _, e=escaped: e[int(at)]))
        axes.tick_params(axis="x", rotation=90)
        if result.b is not None:
            axes.set_ylabel("A")
            axes.set_xlabel("B")
        if most <= _NUMBERED:
            colors = scale.paint(values) @ np.array([0.299, 0.587, 0.114])
            for (y, x), value in np.ndenumerate(values):
                if not math.isnan(value):
                    ink = "#1c1e21" if colors[y, x] > 128 else "white"
                    axes.text(x, y, number(value), ha="center", va="center", fontsize=6, color=ink)
        finish_figure(figure)
    size = f"{len(names)} by {len(others)} layers"
    return Drawing(figure, "similar", (f"{result.title}: {size}",))
