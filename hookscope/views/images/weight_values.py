"""The values of a weight for a picture, reduced to what a picture can show, in bounded memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.tensor_measures import has_channels
from hookscope.file_analysis.weight_reader import WeightReader, as_slice, full_index
from hookscope.files.words import shape_label
from hookscope.results.numpy_stats import magnitude
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.tensor_key import WHOLE
from hookscope.views.images.figures.canvas import SERIES, draw_gridlines, finish_figure, new_figure
from hookscope.views.images.figures.capture_figure import draw_capture
from hookscope.views.images.figures.drawing import Drawing, paper_style
from hookscope.views.images.figures.filters_figure import draw_matrix, draw_weight
from hookscope.views.images.plot_choice import CURVE, FILTERS, PlotChoice, TensorPart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SIDE = 1024  # cells of a side of a matrix, and of a curve
MAX_KERNELS = 1 << 27  # elements of kernels, which are in memory
_AT_ONCE = 1 << 22  # elements of a matrix that are read at a time

_WIDTH, _HEIGHT = 7.0, 2.6  # inches
_MARKED = 200  # entries that have a mark each
_AXES = ("output feature", "input feature")


@dataclass(frozen=True)
class ReducedMatrix:
    """A matrix whose cells are the entry of largest magnitude of ``(rows, columns)`` entries."""

    values: NDArray[Any]
    shape: tuple[int, int]
    cell: tuple[int, int]


@dataclass(frozen=True)
class ReducedCurve:
    """The entries of a vector, or the smallest and the largest of each ``cell`` of them."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    cell: int


def read_kernels(reader: WeightReader, part: TensorPart) -> NDArray[Any]:
    """Return the values of a weight of three dimensions or more."""
    shape = reader.shape(part.record.key, part.index)
    if prod(shape) > MAX_KERNELS:
        raise RequestError(
            f"{part.name} ({shape_label(shape)}) has {prod(shape):,} entries, and a picture of"
            f" kernels takes at most {MAX_KERNELS:,}.",
            f"Take a slice: {part.record.key}[0].",
        )
    return magnitude(reader.tensor(part.record.key, part.index))


def read_matrix(reader: WeightReader, part: TensorPart, side: int = MAX_SIDE) -> ReducedMatrix:
    """Return a matrix with at most ``side`` rows and columns.

    An average would hide single large entries, and of weights it is near zero: of the entries in a
    cell the one of largest magnitude is kept.
    """
    height, width = reader.shape(part.record.key, part.index)
    tall, wide = -(-height // side), -(-width // side)
    entries = full_index(part.index, part.record.shape)
    axis = next(n for n, entry in enumerate(entries) if isinstance(entry, range))
    rows = entries[axis]
    assert isinstance(rows, range)
    count = max(_AT_ONCE // (width * tall), 1) * tall  # whole cells
    pieces = []
    for start in range(0, height, count):
        some = rows[start : start + count]
        stop = some.stop if some.stop >= 0 else None
        index = (*entries[:axis], slice(some.start, stop, some.step), *entries[axis + 1 :])
        taken = tuple(as_slice(entry) for entry in index)
        values = magnitude(reader.tensor(part.record.key, taken))
        pieces.append(_strongest(values, tall, wide))
    return ReducedMatrix(np.concatenate(pieces), (height, width), (tall, wide))


def read_curve(reader: WeightReader, part: TensorPart, points: int = MAX_SIDE) -> ReducedCurve:
    """Return the entries of a tensor in order; of many the range of each cell of them."""
    (length,) = reader.shape(part.record.key, part.index)
    cell = 1 if length <= 2 * points else -(-length // points)
    low, high = (np.full(-(-length // cell), np.nan) for _ in range(2))
    at = 0
    for block in reader.blocks(part.record.key, part.index):
        values = magnitude(block).astype(np.float64)
        values[~np.isfinite(values)] = np.nan
        first, last = at // cell, (at + len(values) - 1) // cell
        starts = np.maximum(np.arange(first, last + 1) * cell - at, 0)
        cells = slice(first, last + 1)
        low[cells] = np.fmin(low[cells], np.fmin.reduceat(values, starts))
        high[cells] = np.fmax(high[cells], np.fmax.reduceat(values, starts))
        at += len(values)
    return ReducedCurve(low, high, cell)


def _strongest(values: NDArray[Any], tall: int, wide: int) -> NDArray[Any]:
    """The entry of largest magnitude of each cell; the first NaN if there is one."""
    if tall == wide == 1:
        return values
    height, width = values.shape
    padded = np.pad(values, ((0, -height % tall), (0, -width % wide)))
    rows, columns = padded.shape[0] // tall, padded.shape[1] // wide
    blocks = padded.reshape(rows, tall, columns, wide).swapaxes(1, 2)
    cells = blocks.reshape(rows, columns, tall * wide)
    # int8 has no magnitude of -128; argmax takes NaN for the largest.
    strongest = np.abs(cells.astype(np.float64)).argmax(axis=2)
    return np.take_along_axis(cells, strongest[..., None], axis=2)[..., 0]


def draw_curve(curve: ReducedCurve, title: str, about: str) -> Figure:
    """Draw the entries of a vector; of a long one the range of every few entries."""
    from matplotlib.ticker import MaxNLocator

    figure, _ = new_figure(_WIDTH, _HEIGHT, title, about)
    axes = figure.subplots()
    position = np.arange(len(curve.low)) * curve.cell
    if curve.cell > 1:
        axes.fill_between(position, curve.low, curve.high, color=SERIES[0], linewidth=0.4)
    else:
        marker = "o" if len(curve.low) <= _MARKED else ""
        axes.plot(position, curve.low, color=SERIES[0], linewidth=0.7, marker=marker, markersize=2)
    axes.set_xlabel("index")
    axes.set_ylabel("weight")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    draw_gridlines(axes)
    return finish_figure(figure)


def draw_weights(reader: WeightReader, choice: PlotChoice, options: PlotOptions) -> Drawing:
    """Return the plot of some tensors that was chosen."""
    if options.dim is not None:
        raise RequestError(
            "--channel-dim is for captures: the channels of a weight are its first dimension.",
            "Leave it out, or take a slice.",
        )
    if choice.kind == FILTERS:
        return draw_filters(reader, choice.parts[0], options)
    if choice.kind == CURVE:
        return _draw_vector(reader, choice.parts[0], options)
    return draw_capture(reader, choice, options)


def draw_filters(reader: WeightReader, part: TensorPart, options: PlotOptions) -> Drawing:
    """Return the picture of a weight: its kernels, or the matrix that it is."""
    about = os.path.basename(str(reader.path).rstrip("/"))
    shape = reader.shape(part.record.key, part.index)
    if len(shape) != 2:
        return draw_weight(part.name, "", read_kernels(reader, part), about, options)
    matrix, tensor = read_matrix(reader, part), reader.weights.tensors[part.record.key]
    summary = f"{part.name} ({shape_label(shape)})"
    if matrix.cell != (1, 1):
        cell = f"{matrix.cell[0]}x{matrix.cell[1]}"
        about += f"; a pixel is the entry of largest magnitude of {cell}"
        summary += f": the largest of each {cell} entries"
    with paper_style(options.dark):
        axes = _AXES if part.index == WHOLE and has_channels(tensor) else ("row", "column")
        figure = draw_matrix(matrix.values, part.name, about, axes, matrix.shape)
    return Drawing(figure, FILTERS, (summary,), options.dark)


def _draw_vector(reader: WeightReader, part: TensorPart, options: PlotOptions) -> Drawing:
    shape = reader.shape(part.record.key, part.index)
    curve = read_curve(reader, part)
    about = os.path.basename(str(reader.path).rstrip("/"))
    summary = f"{part.name} ({shape_label(shape)})"
    if curve.cell > 1:
        about += f"; from the smallest to the largest of each {curve.cell:,} entries"
        summary += f": the range of each {curve.cell:,} entries"
    elif np.isnan(curve.low).any():
        about += f"; {np.isnan(curve.low).sum()} entries that are not finite are not drawn"
    with paper_style(options.dark):
        figure = draw_curve(curve, part.name, about)
    return Drawing(figure, CURVE, (summary,), options.dark)
