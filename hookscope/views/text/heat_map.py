"""A heat map in a terminal: one line for each layer, one coloured cell for each position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.style import Style
from rich.text import Text

from hookscope.escapes import visible
from hookscope.specs.patterns import layer_text
from hookscope.views.text.text_table import TextOptions

_NAME_SHARE = 0.35  # of the width, for the names of layers
_BRIGHT = 0.55  # of the luminance, above which the text is black


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
