"""Tensors of a file of weights as a figure: kernels, a matrix, a vector, or an overview."""

from __future__ import annotations

import os

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hookscope.errors import RequestError
from hookscope.file_analysis.weights.channel_measures import has_channels
from hookscope.file_analysis.weights.weight_reader import WeightReader
from hookscope.files.words import shape_label
from hookscope.specs.tensor_key import WHOLE
from hookscope.views.images.figures.canvas import SERIES, finish_figure, new_figure, paper_style
from hookscope.views.images.figures.capture_figure import draw_capture
from hookscope.views.images.figures.drawing import Drawing, FigureOptions
from hookscope.views.images.figures.filters_figure import draw_matrix, draw_weight
from hookscope.views.images.plot_choice import CURVE, FILTERS, PlotChoice, TensorPart
from hookscope.views.images.weight_values import ReducedCurve, read_curve, read_kernels, read_matrix

_WIDTH, _HEIGHT = 7.0, 2.6  # inches
_MARKED = 200  # entries that have a mark each


_AXES = ("output feature", "input feature")


def draw_curve(curve: ReducedCurve, title: str, about: str) -> Figure:
    """Draw the entries of a vector; of a long one the range of every few entries."""
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
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    return finish_figure(figure)


def draw_weights(reader: WeightReader, choice: PlotChoice, options: FigureOptions) -> Drawing:
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


def draw_filters(reader: WeightReader, part: TensorPart, options: FigureOptions) -> Drawing:
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


def _draw_vector(reader: WeightReader, part: TensorPart, options: FigureOptions) -> Drawing:
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
