"""Maps of layers by positions or heads, with a text in each cell: of the logit lens and a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.files.words import count_text, plural
from hookscope.specs.patterns import layer_text
from hookscope.views.images.colors import ColorScale
from hookscope.views.images.figures.canvas import (
    draw_image,
    escape_text,
    finish_figure,
    label_inches,
    new_figure,
    paper_style,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing

_CELL_WIDTH, _CELL_HEIGHT = 0.72, 0.24  # inches
_LETTERS = 10  # of the text of a cell and of a column
_BRIGHT = 0.55  # of the luminance of a colour, above which the text is dark
MOST_CELLS = 8192  # of all panels together: seconds to draw


@dataclass(frozen=True)
class LayerMapPanel:
    """One map."""

    values: NDArray[np.float64]
    texts: Sequence[Sequence[str]]
    columns: Sequence[str]


@dataclass(frozen=True)
class LayerMapLabels:
    """The texts around the maps."""

    title: str
    about: str
    value: str
    axis: str
    noun: str = "position"


def draw_layer_map(
    panels: Sequence[LayerMapPanel],
    layers: Sequence[str],
    scale: ColorScale,
    labels: LayerMapLabels,
    kind: str,
) -> Drawing:
    """Draw one panel below the other: layers from bottom to top, columns to the right."""
    count = sum(panel.values.size for panel in panels)
    if count > MOST_CELLS:
        raise RequestError(
            f"The picture would have {count_text(count)} cells, and the limit is"
            f" {count_text(MOST_CELLS)}.",
            f"Select layers with --layer, give fewer texts, or write a page (-o {kind}.html).",
        )
    columns = max(panel.values.shape[1] for panel in panels)
    names = [shorten_middle(layer_text(layer), 32) for layer in layers]
    label = label_inches(map(escape_text, names))
    with paper_style(dark=False):
        figure, _ = new_figure(
            label + columns * _CELL_WIDTH + 0.9,
            len(panels) * (len(names) * _CELL_HEIGHT + 0.7),
            labels.title,
            labels.about,
        )
        axes_list = figure.subplots(len(panels), 1, squeeze=False).flat
        for axes, panel in zip(axes_list, panels, strict=True):
            _draw_panel(figure, axes, panel, scale, labels, names)
        finish_figure(figure)
    shows = tuple(
        f"{plural(len(names), 'layer')} by {plural(panel.values.shape[1], labels.noun)}"
        for panel in panels
    )
    return Drawing(figure, kind, shows)


def _draw_panel(
    figure: Figure,
    axes: Axes,
    panel: LayerMapPanel,
    scale: ColorScale,
    labels: LayerMapLabels,
    names: list[str],
) -> None:
    shown = draw_image(axes, panel.values, scale, aspect="auto")
    axes.invert_yaxis()  # the first layer is at the bottom
    figure.colorbar(shown, ax=axes, label=labels.value, pad=0.02)
    bright = scale.paint(panel.values) @ np.array([0.299, 0.587, 0.114]) > 255 * _BRIGHT
    for (y, x), is_bright in np.ndenumerate(bright):
        text = escape_text(shorten_middle(panel.texts[y][x], _LETTERS))
        color = "#1c1e21" if is_bright else "white"
        axes.text(x, y, text, ha="center", va="center", fontsize=6, color=color)
    axes.set_xlabel(labels.axis)
    axes.xaxis.set_major_locator(FixedLocator(list(range(len(panel.columns)))))
    axes.yaxis.set_major_locator(FixedLocator(list(range(len(names)))))
    short = [escape_text(shorten_middle(text, _LETTERS)) for text in panel.columns]
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: short[int(at)]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: escape_text(names[int(at)])))
