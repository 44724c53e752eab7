"""Feature maps in the terminal: half blocks in two colours, about square, or shades in ASCII."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.text import Text

from hookscope.escapes import visible
from hookscope.files.words import count_text, number_text, shape_text
from hookscope.views.images.colors import ColorScale, color_scale
from hookscope.views.images.feature_maps import FeatureMaps, resize_maps
from hookscope.views.text.text_table import TextOptions, sentence

GAP = 1  # cells between two maps
MIN_MAP_WIDTH = 8  # cells; maps that need more room than the window are cut off by it
SHADES = " .:-=+*#%@"
NAN, INFINITE = "?", "!"
LEGEND_WIDTH = 16  # cells of the bar of colours


def map_lines(
    maps: FeatureMaps,
    window: tuple[int, int],
    colored: bool,
    each: bool = False,
    ascii: bool = False,
) -> list[Text]:
    """Return a grid of maps that fills a window, with the scale below."""
    width, lines = window
    options = TextOptions(width, ascii)
    number, high, wide = maps.values.shape
    label = max((len(str(channel)) for channel in maps.channels), default=0)
    # The scale is that of the values before they are averaged.
    scales = list(map(color_scale, maps.values)) if each else [color_scale(maps.values)] * number
    legend = _legend(maps, scales, each, colored, options)
    head = _head(maps, (lines, width), colored, options)
    left = lines - len(head) - len(legend) - 1  # for the prompt
    across, rows, columns = fit_maps(number, high, wide, width, left, label)
    rows = rows if colored else math.ceil(rows / 2)
    printed = _head(maps, (rows, columns), colored, options)
    shrunk = resize_maps(maps.values, rows, columns)
    drawn = [
        _blocks(values, scale) if colored else _shades(values, scale)
        for values, scale in zip(shrunk, scales, strict=True)
    ]
    for start in range(0, number, across):
        if maps.channels:
            shown = maps.channels[start : start + across]
            line = Text("".join(f"{channel:<{columns + GAP}}" for channel in shown), "dim")
            line.rstrip()
            printed.append(line)
        for parts in zip(*drawn[start : start + across], strict=True):
            line = Text(" " * GAP).join(parts)
            line.rstrip()
            printed.append(line)
    return printed + legend


def fit_maps(
    number: int, high: int, wide: int, width: int, lines: int, label: int
) -> tuple[int, int, int]:
    """Return how many maps are side by side, and the rows and columns of each.

    Two rows take one line. A map keeps its aspect ratio, and is enlarged by a whole number only. Of
    all ways to fill the window, the one with the largest maps is taken.

    >>> fit_maps(16, 56, 56, 80, 24, 2)
    (6, 12, 12)
    """
    scale = 0.0
    for across in range(1, number + 1):
        beside = (width - GAP * (across - 1)) // across
        below = 2 * (lines // math.ceil(number / across) - bool(label))
        scale = max(scale, min(beside / wide, below / high))
    scale = max(scale, min(max(min(MIN_MAP_WIDTH, wide), label), width) / wide)
    if scale > 1:
        scale = math.ceil(label / wide) if scale * wide < label else math.floor(scale)
    columns = max(math.floor(wide * scale), 1)
    across = max(min((width + GAP) // (columns + GAP), number), 1)
    return across, max(round(high * scale), 1), columns


def _head(
    maps: FeatureMaps, size: tuple[int, int], colored: bool, options: TextOptions
) -> list[Text]:
    """The tensor's name, the part that is drawn, and its size if it is not the original size."""
    parts = [f"{maps.record.type} {shape_text(maps.record.shape)} {maps.record.dtype}"]
    if maps.channels:
        parts.append(f"{count_text(len(maps.channels))} of {count_text(maps.total)} {maps.noun}")
    elif len(maps.record.shape) == 3 and not maps.part:
        parts.append("rows: first dimension of a sample, columns: second")
    parts += filter(None, (*maps.single, maps.note))
    own, drawn = shape_text(maps.values.shape[1:]), shape_text(size)
    parts.append(own if drawn == own else f"{own} drawn as {drawn}{' characters' * (not colored)}")
    return [
        Text(visible(f"{maps.record.key}{maps.part}", options.ascii), "bold"),
        *sentence(f"{'; '.join(parts)}.", options),
    ]


def _blocks(values: NDArray[np.float64], scale: ColorScale) -> list[Text]:
    """A map in half blocks, two rows a line."""
    colors = scale.paint(values)
    lines = []
    for top in range(0, len(colors), 2):
        line = Text()
        under = colors[top + 1] if top + 1 < len(colors) else [None] * colors.shape[1]
        for upper, lower in zip(colors[top], under, strict=True):
            line.append("▀", Style(color=_rgb(upper), bgcolor=_rgb(lower)))
        lines.append(line)
    return lines


def _rgb(color: Any) -> Color | None:
    return None if color is None else Color.from_rgb(*map(int, color))


def _shades(values: NDArray[np.float64], scale: ColorScale) -> list[Text]:
    """A map in characters, one row a line; a larger value has a denser character."""
    position = np.nan_to_num(scale.position(values)) * (len(SHADES) - 1)
    characters = np.array(list(SHADES))[np.rint(position).astype(int)]
    characters[np.isinf(values)] = INFINITE
    characters[np.isnan(values)] = NAN
    return [Text("".join(row)) for row in characters]


def _legend(
    maps: FeatureMaps, scales: list[ColorScale], each: bool, colored: bool, options: TextOptions
) -> list[Text]:
    """The scale from its lowest to its highest value; with a scale for each map, their ends."""
    if each:
        names = maps.channels or (0,)
        ends = [
            f"{n}: {number_text(s.low)} to {number_text(s.high)}"
            for n, s in zip(names, scales, strict=True)
        ]
        lines = sentence(f"Scales: {'; '.join(ends)}.", options)
    else:
        low, high = scales[0].low, scales[0].high
        colors = scales[0].paint(np.linspace(low, high, LEGEND_WIDTH))
        bar = Text(f"|{SHADES}|")
        if colored:
            bar = Text.assemble(*(("█", Style(color=_rgb(color))) for color in colors))
        lines = [Text.assemble(f"{number_text(low)} ", bar, f" {number_text(high)}")]
    if np.isfinite(maps.values).all():
        return lines
    key = Text(f"{NAN} NaN  {INFINITE} infinite")
    if colored:
        nan, inf = scales[0].paint(np.array([np.nan, np.inf]))
        key = Text.assemble(
            *(("█", Style(color=_rgb(nan))), " NaN  "),
            *(("█", Style(color=_rgb(inf))), " infinite"),
        )
    return [*lines, key]
