"""The logit lens as a picture: layers by positions, each cell with its most probable token."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.results.lens import Lens, LensCell
from hookscope.views.images.colors import ColorScale
from hookscope.views.images.figure_labels import recording_caption
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
from hookscope.views.text.formats import count_text, layer_text, plural, token_text

_CELL_WIDTH, _CELL_HEIGHT = 0.72, 0.24  # inches
_LETTERS = 10  # of a token in a cell
MOST_POSITIONS = 64  # that are drawn, the last ones
MOST_CELLS = 8192  # of all texts together: seconds to draw


def draw_lens(result: Lens) -> Drawing:
    """Draw one panel for each text: layers from bottom to top, positions to the right.

    The colour of a cell is the probability of its most probable token, which is written into it.

    Raises:
        RequestError: there are more cells than fit on a picture.
    """
    numbers = [n for n in range(len(result.rows)) if result.real_positions(n)]
    panels = [_panel(result, number) for number in numbers]
    count = sum(values.size for values, _ in panels)
    if count > MOST_CELLS:
        raise RequestError(
            f"The picture would have {count_text(count)} cells, and the limit is"
            f" {count_text(MOST_CELLS)}.",
            "Select layers with --layer, give fewer texts, or write a page (-o lens.html).",
        )
    columns = max(values.shape[1] for values, _ in panels)
    names = [shorten_middle(layer_text(layer), 32) for layer in result.layers]
    label = label_inches(max(map(len, names)))
    title = "Most probable next token at each layer"
    with paper_style(dark=False):
        figure, _ = new_figure(
            label + columns * _CELL_WIDTH + 0.9,
            len(panels) * (len(names) * _CELL_HEIGHT + 0.7),
            title,
            recording_caption(result.metadata),
        )
        axes_list = figure.subplots(len(panels), 1, squeeze=False).flat
        for axes, number, (values, cells) in zip(axes_list, numbers, panels, strict=True):
            _draw_panel(figure, axes, result, number, values, cells, names)
        finish_figure(figure)
    shows = tuple(
        f"{plural(len(names), 'layer')} by {plural(values.shape[1], 'position')}"
        for values, _ in panels
    )
    return Drawing(figure, "lens", shows)


def _panel(result: Lens, number: int) -> tuple[NDArray[np.float64], list[list[LensCell]]]:
    """The probabilities, layers by positions, and their cells."""
    rows = [cells[-MOST_POSITIONS:] for _, cells in result.by_layer(number)]
    values = [[cell.top[0].probability for cell in cells] for cells in rows]
    return np.array(values, dtype=np.float64), rows


def _draw_panel(
    figure: Figure,
    axes: Axes,
    result: Lens,
    number: int,
    values: NDArray[np.float64],
    cells: list[list[LensCell]],
    names: list[str],
) -> None:
    shown = draw_image(axes, values, ColorScale(0.0, 1.0), aspect="auto")
    axes.invert_yaxis()  # the first layer is at the bottom
    figure.colorbar(shown, ax=axes, label="probability", pad=0.02)
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            probability = cell.top[0].probability
            text = shorten_middle(token_text(cell.top[0].token.text), _LETTERS)
            bright = math.isfinite(probability) and probability > 0.5
            color = "#1c1e21" if bright else "white"
            axes.text(x, y, escape_text(text), ha="center", va="center", fontsize=6, color=color)
    tokens = result.rows[number].tokens
    positions = [cell.position for cell in cells[0]]
    below = [
        token_text(tokens[position].text) if tokens else str(position) for position in positions
    ]
    axes.set_xlabel("after")
    axes.xaxis.set_major_locator(FixedLocator(list(range(len(below)))))
    axes.yaxis.set_major_locator(FixedLocator(list(range(len(names)))))
    short = [escape_text(shorten_middle(text, _LETTERS)) for text in below]
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: short[int(at)]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda at, _: escape_text(names[int(at)])))
