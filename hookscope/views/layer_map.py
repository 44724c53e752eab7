"""Maps of layers by positions or heads, of a lens or a sweep: as text, on a page, in a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from hookscope.files.atomic_files import write_text
from hookscope.files.words import count_text, plural
from hookscope.specs.patterns import layer_text
from hookscope.views.html.page_template import fill_template
from hookscope.views.images.colors import ColorScale
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
from hookscope.views.text.text_table import TextOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ("page.css", "layer_map_page.css")
_SCRIPTS = ("theme.js",)
LEVELS = 10  # of the colours in layer_map_page.css, from 0

_CELL_WIDTH, _CELL_HEIGHT = 0.72, 0.24  # inches
_LETTERS = 10  # of the text of a cell and of a column
_BRIGHT = 0.55  # of the luminance of a colour, above which the text is dark
MOST_CELLS = 8192  # of all panels together: seconds to draw
_NAME_SHARE = 0.35  # of the width, for the names of layers
_BRIGHT = 0.55  # of the luminance, above which the text is black


@dataclass(frozen=True)
class LayerMapCell:
    """One cell."""

    text: str
    color: str
    details: str


@dataclass(frozen=True)
class LayerMapRow:
    """One layer of a map."""

    layer: str
    cells: tuple[LayerMapCell, ...]


@dataclass(frozen=True)
class LayerMap:
    """One map, its layers from the last to the first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[LayerMapRow, ...]


@dataclass(frozen=True)
class LayerMapPage:
    """What the template shows."""

    title: str
    caption: str
    meaning: tuple[str, ...]
    notes: tuple[str, ...]
    scale: tuple[str, ...]
    color: str
    corner: str
    maps: tuple[LayerMap, ...]


def write_layer_map_page(page: LayerMapPage, path: str | os.PathLike[str]) -> int:
    """Write a page; return its size in bytes."""
    return write_text(path, fill_template("layer_map_page.html", _STYLES, _SCRIPTS, page))


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
    name_ticks(axes.xaxis, [shorten_middle(text, _LETTERS) for text in panel.columns])
    name_ticks(axes.yaxis, names)


@dataclass(frozen=True)
class HeatCell:
    """One cell: its text, and its colour from 0 to 255; None if the value is not finite."""

    text: str
    color: tuple[int, int, int] | None


@dataclass(frozen=True)
class HeatMap:
    """Cells by layer, then column."""

    corner: str
    layers: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[HeatCell]]


def heat_map_rows(
    heat: HeatMap, cell_width: int, options: TextOptions, *, last: bool = True
) -> tuple[list[Text], int]:
    """Return the lines of a heat map, and the number of columns that do not fit."""
    assert options.width is not None
    names = [visible(layer_text(layer), options.ascii) for layer in heat.layers]
    longest = max(map(cell_len, [*names, heat.corner]), default=0)
    room = min(longest, int(options.width * _NAME_SHARE))
    fitting = max(1, (options.width - room) // (cell_width + 1))
    count = len(heat.columns)
    shown = slice(max(count - fitting, 0), count) if last else slice(0, fitting)
    header = Text(padded(heat.corner, room), "bold")
    for title in heat.columns[shown]:
        header.append(" ").append(padded(title, cell_width))
    lines = [header]
    for name, row in zip(names, heat.rows, strict=True):
        line = Text(padded(name, room))
        for cell in row[shown]:
            line.append(" ").append(padded(cell.text, cell_width), _style(cell.color))
        lines.append(line)
    return lines, max(count - fitting, 0)


def padded(text: str, width: int) -> str:
    """Return the beginning of a text in so many cells."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return f"{set_cell_size(text, width - 1)}~"


def _style(color: tuple[int, int, int] | None) -> Style:
    if color is None:
        return Style(color="red")
    red, green, blue = (channel / 255 for channel in color)
    bright = 0.299 * red + 0.587 * green + 0.114 * blue > _BRIGHT
    return Style(color="black" if bright else "white", bgcolor=Color.from_rgb(*color))
