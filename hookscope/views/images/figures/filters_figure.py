"""The weights of a layer: kernels of a convolution, or the matrix of a linear layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.files.words import ranges_text, shape_label
from hookscope.specs.plot_options import PlotOptions
from hookscope.views.images.colors import color_scale, nonfinite_text
from hookscope.views.images.feature_maps import pick_channels
from hookscope.views.images.figures.canvas import (
    MIN_WIDTH,
    check_panel_count,
    draw_image,
    finish_figure,
    new_figure,
)
from hookscope.views.images.figures.drawing import Drawing, paper_style
from hookscope.views.images.figures.grid import Grid, columns_for, draw_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL, _NUMBERS = 0.8, 0.12  # inches of a panel, and of the label beside it
_SHADES = 64  # of each colour in the scale of coloured kernels
MAX_COLUMNS = 16  # input channels of a kernel that are drawn


def draw_weight(
    name: str, type: str, weight: NDArray[Any], about: str, options: PlotOptions
) -> Drawing:
    """Return the picture of a weight."""
    title = f"{name} ({type})" if type else name
    summary = f"{name} ({shape_label(weight.shape)})"
    if weight.ndim > 5:
        raise RequestError(
            f"{summary} has {weight.ndim} dimensions, but at most five can be plotted.",
            "Choose another layer.",
        )
    with paper_style(options.dark):
        if weight.ndim == 2:
            embedding = type.startswith("Embedding")
            axes = ("entry", "dimension") if embedding else ("output feature", "input feature")
            figure = draw_matrix(weight, title, about, axes)
            return Drawing(figure, "filters", (summary,), options.dark)
        kernels = choose_kernels(weight, name, options)
        summary += f": filters {ranges_text(kernels.filters)} of {kernels.total}"
        if kernels.color:
            summary += ", in colour"
        elif kernels.left_out:
            summary += f", {kernels.left_out} of the columns for its input channels left out"
        about += f"; {len(kernels.filters)} of {kernels.total} filters"
        figure = draw_kernels(kernels, title, about, options.each)
        return Drawing(figure, "filters", (summary,), options.dark)


def draw_kernels(kernels: Kernels, title: str, about: str, each: bool = False) -> Figure:
    """Draw a panel for each filter, or for each pair of filter and column if there are several."""
    values = kernels.values
    one_panel = kernels.color or len(kernels.columns) == 1
    count, columns = values.shape[:2]
    across = 1 if one_panel else columns
    check_panel_count(count * across)
    share = min(max(values.shape[3] / values.shape[2], 0.4), 4.0)
    grid = Grid(
        count * across,
        columns_for(count, share) if one_panel else columns,
        _PANEL * share,
        _PANEL,
        each and not kernels.color,
        left=0 if one_panel else _NUMBERS,
    ).filling(MIN_WIDTH)
    width, height = grid.size
    about = "; ".join(filter(None, (about, nonfinite_text(values))))
    figure, foot = new_figure(width, height, title, about, None, grid.start)
    top = foot + height
    ends = [""] * count
    if kernels.color:
        panels = list(grid.add_panels(figure, 0, top))
        pictures, largest = _in_color(values, each)
        for panel, picture in zip(panels, pictures, strict=True):
            panel.imshow(picture, interpolation="nearest")
        _draw_color_scale(grid.add_bar(figure, 0, top), None if each else float(largest.max()))
        ends = [f", ±{end:.3g}" for end in largest.ravel()] if each else ends
    else:
        images = list(values.reshape(-1, *values.shape[2:]))
        panels = draw_grid(figure, grid, images, [""] * len(images), "weight", 0, top)
    for i, panel in enumerate(panels):
        if one_panel:
            panel.set_title(f"filter {kernels.filters[i]}{ends[i]}", pad=2)
            continue
        if i < columns:
            panel.set_title(kernels.columns[i], pad=2)
        if i % columns == 0:
            panel.set_ylabel(f"filter {kernels.filters[i // columns]}", fontsize="small")
    return finish_figure(figure)


def draw_matrix(
    matrix: NDArray[Any],
    title: str,
    about: str,
    axes: tuple[str, str],
    shape: tuple[int, int] | None = None,
) -> Figure:
    """Draw a matrix of weights."""
    from matplotlib.ticker import MaxNLocator

    rows, columns = shape or matrix.shape
    # At most four times as wide as high, so that a matrix of a few rows is readable.
    wide, tall = (6.0, max(6 * rows / columns, 1.5)) if columns > rows else (5.0, 5.0)
    about = "; ".join(filter(None, (about, nonfinite_text(matrix))))
    figure, _ = new_figure(wide, tall + 0.7, title, about)
    panel = figure.subplots()
    shown = draw_image(panel, matrix, color_scale(matrix), aspect="auto")
    if shape is not None:
        shown.set_extent((-0.5, columns - 0.5, rows - 0.5, -0.5))
    figure.colorbar(shown, ax=panel, label="weight", pad=0.02)
    panel.set_ylabel(axes[0])
    panel.set_xlabel(axes[1])
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    return finish_figure(figure)


def _in_color(values: NDArray[Any], each: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights ``(filters, 3, height, width)`` as colours, the channels last, and the largest."""
    wide = np.nan_to_num(values.astype(np.float64), nan=0, posinf=0, neginf=0)
    largest = np.abs(wide).max(axis=(1, 2, 3) if each else None, keepdims=True)
    return np.moveaxis(0.5 + wide / np.where(largest == 0, 1, largest) / 2, 1, -1), largest


def _draw_color_scale(bar: Axes, largest: float | None) -> None:
    """Draw a column for red, green and blue, from the least weight to ``largest``."""
    from matplotlib.colors import ListedColormap

    colors = np.full((_SHADES, 3, 3), 0.5)
    for channel in range(3):
        colors[:, channel, channel] = np.linspace(0, 1, _SHADES)
    shades = np.arange(3 * _SHADES).reshape(_SHADES, 3)
    sides = np.linspace(-1, 1, _SHADES + 1)
    bar.pcolormesh(range(4), sides, shades, cmap=ListedColormap(colors.reshape(-1, 3)))
    low, high = ("-max", "max") if largest is None else (f"{-largest:.3g}", f"{largest:.3g}")
    bar.yaxis.set_ticks_position("right")
    bar.yaxis.set_label_position("right")
    bar.set_yticks([-1, 0, 1], [low, "0", high])
    bar.set_ylabel("weight; red, green, blue: inputs 0, 1, 2")


@dataclass(frozen=True)
class Kernels:
    """Some kernels of a convolution."""

    values: NDArray[Any]
    filters: tuple[int, ...]
    columns: tuple[str, ...]
    color: bool
    total: int
    left_out: int


def choose_kernels(weight: NDArray[Any], name: str, options: PlotOptions) -> Kernels:
    """Return some filters of a convolution: three input channels in colour, of more the first 16.

    A filter is one image with a row for each input channel if the convolution is 1-d, and has a
    column for each step of each input channel if it is 3-d.

    >>> kernels = choose_kernels(np.ones((8, 3, 7, 7)), "conv1", PlotOptions(count=4))
    >>> kernels.values.shape, kernels.color
    ((4, 3, 7, 7), True)
    """
    total, inputs = weight.shape[:2]
    chosen = pick_channels(weight, name, options)
    kept = weight[list(chosen)]
    if weight.ndim == 3:
        return Kernels(kept[:, None], chosen, ("",), False, total, 0)
    columns = [f"in {i}" for i in range(inputs)]
    if weight.ndim == 5:
        columns = [f"{column}, step {t}" for column in columns for t in range(weight.shape[2])]
        kept = kept.reshape(len(kept), -1, *weight.shape[3:])
    color = weight.ndim == 4 and inputs == 3
    some = slice(None) if color else slice(MAX_COLUMNS)
    left_out = len(columns) - len(columns[some])
    return Kernels(kept[:, some], chosen, tuple(columns[some]), color, total, left_out)


def output_channels_first(weight: NDArray[Any], groups: int = 1) -> NDArray[Any]:
    """Return the weight of a transposed convolution with its output channels first.

    >>> output_channels_first(np.ones((6, 4, 3, 3)), groups=2).shape
    (8, 3, 3, 3)
    """
    parted = weight.reshape(groups, -1, *weight.shape[1:])
    turned = np.swapaxes(parted, 1, 2)
    return turned.reshape(-1, *turned.shape[2:])
