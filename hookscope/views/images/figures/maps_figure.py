"""``--kind maps``: feature maps of one layer in a grid, several of its tensors side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from hookscope.files.words import shape_label
from hookscope.specs.tensor_key import is_gradient
from hookscope.views.images.colors import (
    PERCENTILE,
    nonfinite_text,
    percentile_bound,
    scale_for,
)
from hookscope.views.images.feature_maps import FeatureMaps
from hookscope.views.images.figures.canvas import (
    MIN_WIDTH,
    check_panel_count,
    escape_text,
    finish_figure,
    new_figure,
)
from hookscope.views.images.figures.grid import LINE, Grid, columns_for, draw_grid

_PANEL = 1.15  # inches of a panel's height
_NARROWEST, _WIDEST = 0.5, 4.0  # of a panel, in heights
_BETWEEN, _LETTER = 0.3, 0.07  # inches between the grids, and of a letter above them


def draw_maps(blocks: Sequence[FeatureMaps], title: str, about: str, each: bool = False) -> Figure:
    """Draw feature maps as a grid for each tensor, the first on the left."""
    check_panel_count(sum(len(block.values) for block in blocks))
    heads = [_head(block, each) for block in blocks]
    head = max(map(len, heads)) * LINE
    grids = [_grid(block, each) for block in blocks]
    start = grids[0].start
    widths = [start + _LETTER * max(map(len, lines)) for lines in heads]
    if len(blocks) == 1:
        grids = [grids[0].filling(max(MIN_WIDTH, widths[0]))]
    widths = [max(grid.size[0], text) for grid, text in zip(grids, widths, strict=True)]
    height = head + max(grid.size[1] for grid in grids)
    wide = sum(widths) + _BETWEEN * (len(blocks) - 1)
    figure, foot = new_figure(wide, height, title, about, layout=None, left=start)
    top, left = foot + height, 0.0
    for block, grid, lines, width in zip(blocks, grids, heads, widths, strict=True):
        figure.text(
            (left + start) / figure.get_figwidth(),
            top / figure.get_figheight(),
            "\n".join(map(escape_text, lines)),
            va="top",
        )
        labels = [f"{block.noun[:-1]} {channel}" for channel in block.channels] or [""]
        draw_grid(
            figure,
            grid,
            list(block.values),
            labels,
            block.quantity,
            left,
            top - head,
            scale_for(block.record.kind),
        )
        left += width + _BETWEEN
    return finish_figure(figure)


def _grid(block: FeatureMaps, each: bool) -> Grid:
    count, height, width = block.values.shape
    share = min(max(width / height, _NARROWEST), _WIDEST)
    # Without a label there is a line all the same: the exponent of the colour bar stands in it.
    return Grid(count, columns_for(count, share), _PANEL * share, _PANEL, each)


def _head(block: FeatureMaps, each: bool) -> list[str]:
    shape = shape_label(block.record.shape)
    some = f"{len(block.channels)} of {block.total} {block.noun}" if block.channels else "one map"
    # Without channels the note says what the map is.
    parts = (some, *block.single) if block.channels else (some, *block.single, block.note)
    lines = [", ".join(filter(None, parts)), block.note if block.channels else ""]
    lines += [_percentile_text(block, each)] if is_gradient(block.record.kind) else []
    lines.append(nonfinite_text(block.values))
    return [f"{block.record.what}{block.part}, {shape}", *filter(None, lines)]


def _percentile_text(block: FeatureMaps, each: bool) -> str:
    """Where the colours of gradients end."""
    end = f"colours end at the {PERCENTILE}th percentile"
    if each and len(block.values) > 1:
        return f"{end} of each panel"
    sizes = np.abs(block.values[np.isfinite(block.values)])
    if not sizes.size:
        return ""
    bound, largest = percentile_bound(sizes), float(sizes.max())
    return f"{end}, {bound:.3g} (largest {largest:.3g})"
