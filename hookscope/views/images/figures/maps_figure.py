"""``--kind maps``: feature maps of one layer in a grid, several of its tensors side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from hookscope.views.images.feature_maps import FeatureMaps
from hookscope.views.images.figure_labels import quantity_name, shape_label
from hookscope.views.images.figures.canvas import (
    check_panel_count,
    escape_text,
    finish_figure,
    new_figure,
    nonfinite_text,
)
from hookscope.views.images.figures.grid import LINE, Grid, draw_grid

_PANEL = 1.15  # inches of a panel's height
_NARROWEST, _WIDEST = 0.5, 4.0  # of a panel, in heights
_BETWEEN, _LETTER = 0.3, 0.075  # inches between the grids, and of a letter above them


def draw_maps(blocks: Sequence[FeatureMaps], title: str, about: str, each: bool = False) -> Figure:
    """Draw feature maps as a grid for each tensor, the first on the left.

    Args:
        blocks: the maps of each tensor; see ``read_feature_maps``.
        title: title of the figure.
        about: the model and its input.
        each: one scale of colours for each map, instead of one for each grid.
    """
    check_panel_count(sum(len(block.values) for block in blocks))
    grids = [_grid(block, each) for block in blocks]
    heads = [_head(block) for block in blocks]
    head = max(map(len, heads)) * LINE
    widths = [
        max(grid.size[0], _LETTER * _longest(lines))
        for grid, lines in zip(grids, heads, strict=True)
    ]
    height = head + max(grid.size[1] for grid in grids)
    wide = sum(widths) + _BETWEEN * (len(blocks) - 1)
    figure, foot = new_figure(wide, height, title, about, layout=None)
    top = foot + height
    left = (figure.get_figwidth() - wide) / 2
    for block, grid, lines, width in zip(blocks, grids, heads, widths, strict=True):
        # Above the middle of the panels, but inside the left edge.
        middle = max(left + grid.columns * grid.cell[0] / 2, left + _LETTER * _longest(lines) / 2)
        figure.text(
            middle / figure.get_figwidth(),
            top / figure.get_figheight(),
            "\n".join(map(escape_text, lines)),
            ha="center",
            va="top",
        )
        labels = [f"{block.noun[:-1]} {channel}" for channel in block.channels] or [""]
        quantity = quantity_name(block.record.kind)
        draw_grid(figure, grid, list(block.values), labels, quantity, left, top - head)
        left += width + _BETWEEN
    return finish_figure(figure)


def _longest(lines: Sequence[str]) -> int:
    return max(map(len, lines))


def _grid(block: FeatureMaps, each: bool) -> Grid:
    count, height, width = block.values.shape
    share = min(max(width / height, _NARROWEST), _WIDEST)
    columns = math.ceil(math.sqrt(count / share))  # as wide as high, about
    return Grid(count, columns, _PANEL * share, _PANEL, each)


def _head(block: FeatureMaps) -> list[str]:
    shape = shape_label(block.record.shape)
    some = f"{len(block.channels)} of {block.total} {block.noun}" if block.channels else "one map"
    lines = [", ".join((some, *block.single)), block.note, nonfinite_text(block.values)]
    return [f"{block.record.what}{block.part}, {shape}", *filter(None, lines)]
