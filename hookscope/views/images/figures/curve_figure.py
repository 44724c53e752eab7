"""The entries of a tensor of one dimension, in their order."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hookscope.views.images.figures.canvas import SERIES, finish_figure, new_figure
from hookscope.views.images.weight_values import ReducedCurve

_WIDTH, _HEIGHT = 7.0, 2.6  # inches
_MARKED = 200  # entries that have a mark each


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
