"""Maps of layers by positions, heads or layers: as text, on a page, in a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.style import Style
from rich.text import Text

from hookscope.errors import RequestError
from hookscope.escapes import visible
from hookscope.files.words import count_text, plural
from hookscope.views.html.analysis_page import LEVELS, AnalysisPage, PageMap, color_class
from hookscope.views.images.colors import ColorScale, is_bright
from hookscope.views.images.figures.canvas import (
    draw_image,
    escape_text,
    finish_figure,
    label_inches,
    name_ticks,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing, paper_style
from hookscope.views.text.text_table import TextOptions, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CELL_WIDTH, _CELL_HEIGHT = 0.72, 0.24  # inches
CELL_FONT = 6  # points
_LETTERS = 10  # of the text of a cell and of a column
MOST_CELLS = 8192  # of all maps of a picture together: seconds to draw
_NAME_SHARE = 0.35  # of the width, for the names of layers


@dataclass(frozen=True)
class LayerMap:
    """A number for each layer and column, its text, and what a page says on pointing at it."""

    title: str
    layers: Sequence[str]
    columns: Sequence[str]
    values: NDArray[np.float64]
    texts: Sequence[Sequence[str]]
    details: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class LayerMaps:
    """Maps with one scale of colours, and the texts around them.

    ``axis`` is what the columns are, ``noun`` what one is; ``corner`` is above the names of layers.
    """

    title: str
    about: str
    value: str
    axis: str
    noun: str
    corner: str
    scale: ColorScale
    maps: Sequence[LayerMap]

    def page(
        self, meaning: tuple[str, ...], notes: tuple[str, ...], text_of: Callable[[float], str]
    ) -> AnalysisPage:
        """Return the page, with the last layer at the top; ``text_of`` names ends of colours."""
        ends = np.linspace(self.scale.low, self.scale.high, LEVELS + 1)
        legend = tuple(
            (text_of(float(end)), color_class(self.scale, n / LEVELS)) for n, end in enumerate(ends)
        )
        maps = [page_map(one, self.scale, self.corner) for one in self.maps]
        flipped = tuple(PageMap(x.title, x.corner, x.columns, x.rows[::-1]) for x in maps)
        return AnalysisPage(self.title, self.about, meaning, notes, flipped, legend)

    def lines(self, cell_width: int, options: TextOptions) -> list[Text]:
        """Return the lines of the first map, and which columns do not fit."""
        lines, hidden = heat_map_lines(
            self.maps[0], self.scale, cell_width, options, corner=self.corner
        )
        if hidden:
            text = f"The first {plural(hidden, self.noun)} are in the file, in a picture and in a"
            lines += sentence(f"{text} pipe.", options, "dim")
        return lines

    def draw(self, kind: str) -> Drawing:
        """Draw one panel below the other: layers from bottom to top, columns to the right."""
        count = sum(one.values.size for one in self.maps)
        if count > MOST_CELLS:
            raise RequestError(
                f"The picture would have {count_text(count)} cells, and the limit is"
                f" {count_text(MOST_CELLS)}.",
                f"Select layers with --layer, give fewer texts, or write a page (-o {kind}.html).",
            )
        columns = max(one.values.shape[1] for one in self.maps)
        names = [shorten_middle(layer, 32) for layer in self.maps[0].layers]
        label = label_inches(map(escape_text, names))
        with paper_style(dark=False):
            figure, _ = new_figure(
                label + columns * _CELL_WIDTH + 0.9,
                len(self.maps) * (len(names) * _CELL_HEIGHT + 0.7),
                self.title,
                self.about,
            )
            axes_list = figure.subplots(len(self.maps), 1, squeeze=False).flat
            for axes, one in zip(axes_list, self.maps, strict=True):
                self._draw_panel(axes, one, names)
            finish_figure(figure)
        shows = tuple(
            f"{plural(len(names), 'layer')} by {plural(one.values.shape[1], self.noun)}"
            for one in self.maps
        )
        return Drawing(figure, kind, shows)

    def _draw_panel(self, axes: Axes, one: LayerMap, names: Sequence[str]) -> None:
        shown = draw_image(axes, one.values, self.scale, aspect="auto")
        axes.invert_yaxis()  # the first layer is at the bottom
        axes.figure.colorbar(shown, ax=axes, label=self.value, pad=0.02)
        texts = [[shorten_middle(text, _LETTERS) for text in row] for row in one.texts]
        write_cells(axes, one.values, texts, self.scale)
        axes.set_xlabel(self.axis)
        name_ticks(axes.xaxis, [shorten_middle(text, _LETTERS) for text in one.columns])
        name_ticks(axes.yaxis, names)


def page_map(one: LayerMap, scale: ColorScale, corner: str) -> PageMap:
    """Return a map as a page shows it, with the first layer at the top."""
    shares = scale.position(one.values).tolist()
    rows = tuple(
        (layer, tuple(zip(texts, (color_class(scale, x) for x in row), details, strict=True)))
        for layer, texts, row, details in zip(
            one.layers, one.texts, shares, one.details, strict=True
        )
    )
    return PageMap(one.title, corner, tuple(one.columns), rows)


def write_cells(
    axes: Axes, values: NDArray[np.float64], texts: Sequence[Sequence[str]], scale: ColorScale
) -> None:
    """Write a text into each cell of a map that is drawn."""
    for (y, x), bright in np.ndenumerate(is_bright(scale.paint(values))):
        color = "#1c1e21" if bright else "white"
        text = escape_text(texts[y][x])
        axes.text(x, y, text, ha="center", va="center", fontsize=CELL_FONT, color=color)


def heat_map_lines(
    one: LayerMap,
    scale: ColorScale,
    cell_width: int,
    options: TextOptions,
    *,
    corner: str = "",
    last: bool = True,
    name_share: float = _NAME_SHARE,
) -> tuple[list[Text], int]:
    """Return the lines of a map, and the number of columns that do not fit."""
    assert options.width is not None
    names = [visible(layer, options.ascii) for layer in one.layers]
    longest = max(map(cell_len, [*names, corner]), default=0)
    room = min(longest, int(options.width * name_share))
    fitting = max(1, (options.width - room) // (cell_width + 1))
    count = len(one.columns)
    shown = slice(max(count - fitting, 0), count) if last else slice(0, fitting)
    header = Text(padded(corner, room), "bold")
    for title in one.columns[shown]:
        header.append(" ").append(padded(title, cell_width))
    lines = [header]
    for name, texts, values in zip(names, one.texts, one.values, strict=True):
        line = Text(padded(name, room))
        for text, value in zip(texts[shown], values[shown], strict=True):
            line.append(" ").append(padded(text, cell_width), color_style(scale, float(value)))
        lines.append(line)
    return lines, max(count - fitting, 0)


def padded(text: str, width: int) -> str:
    """Cut or pad a text to ``width`` cells."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return f"{set_cell_size(text, width - 1)}~"


def color_style(scale: ColorScale, value: float) -> Style:
    """Return the style of a number on a terminal: its colour is behind the text."""
    if not math.isfinite(value):
        return Style(color="red")
    color = scale.paint(np.array(value))
    ink = "black" if is_bright(color) else "white"
    return Style(color=ink, bgcolor=Color.from_rgb(*map(int, color)))
