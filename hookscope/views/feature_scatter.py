"""The rows of a layer as points: outliers as text, a picture, a page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.text import Text

from hookscope.files.words import count_text
from hookscope.results.feature_scatter import FeatureScatter
from hookscope.views.display import View, filed_document
from hookscope.views.html.scatter_page import scatter_page
from hookscope.views.images.colors import SEQUENTIAL
from hookscope.views.images.figures.canvas import (
    MARKERS,
    SERIES,
    add_legend,
    escape_text,
    finish_figure,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing, paper_style
from hookscope.views.scatter_parts import (
    OTHERS,
    axis_names,
    has_numbers,
    outlier_title,
    point_groups,
    point_table,
    scatter_title,
)
from hookscope.views.text.shared_parts import NOTICE_STYLE, styled_lines
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY = "#8b9199"
_SIDE = 4.6  # inches of the panel
_FEW = 500  # points up to which they are drawn large
_LETTERS = 24  # of a category in the legend


def scatter_lines(result: FeatureScatter, options: TextOptions) -> list[Text]:
    """Return what is drawn, and the outliers; a file of CSV has all points."""
    points = result.outliers if options.tables is None else result.points
    return join_blocks(
        sentence(scatter_title(result), options, "bold"),
        sentence(outlier_title(result), options),
        result_table(point_table(result, points), options),
        styled_lines(((note, NOTICE_STYLE) for note in result.notes), options),
        options=options,
    )


def draw_scatter(result: FeatureScatter) -> Drawing:
    """Draw the points."""
    with paper_style(result.dark):
        width = _SIDE + (2.0 if result.color_by else 0.4)
        name = os.path.basename(os.path.normpath(result.folder))
        about = " ".join([scatter_title(result), *result.notes])
        figure, _ = new_figure(width, _SIDE, f"{result.key} of {name}", about)
        axes = figure.subplots()
        size = 18 if len(result.points) <= _FEW else 6
        if has_numbers(result):
            _draw_numbers(axes, result, size)
        else:
            _draw_groups(axes, result, size)
        if result.explained:  # lengths along both axes are comparable
            axes.set_aspect("equal", adjustable="datalim")
        across, up = axis_names(result)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.grid()
        axes.set_axisbelow(True)
        finish_figure(figure)
    return Drawing(figure, result.kind, result.shows, result.dark)


def _draw_groups(axes: Axes, result: FeatureScatter, size: float) -> None:
    for group in point_groups(result):
        grey = group.style == OTHERS
        name = escape_text(shorten_middle(group.name, _LETTERS))
        axes.scatter(
            [point.x for point in group.points],
            [point.y for point in group.points],
            s=size,
            color=_GREY if grey else SERIES[group.style % len(SERIES)],
            marker="." if grey else MARKERS[group.style % len(MARKERS)],
            linewidths=0,
            label=f"{name} ({count_text(len(group.points))})",
        )
    if result.color_by is not None:
        add_legend(axes)


def _draw_numbers(axes: Axes, result: FeatureScatter, size: float) -> None:
    from matplotlib.colors import ListedColormap

    known = [point for point in result.points if point.value is not None]
    rest = [point for point in result.points if point.value is None]
    axes.scatter([p.x for p in rest], [p.y for p in rest], s=size, color=_GREY, linewidths=0)
    shown = axes.scatter(
        [point.x for point in known],
        [point.y for point in known],
        s=size,
        c=[float(point.value) for point in known],
        cmap=ListedColormap(SEQUENTIAL / 255),
        linewidths=0,
    )
    axes.figure.colorbar(shown, ax=axes, label=escape_text(result.color_by or ""), pad=0.02)


VIEW: View[FeatureScatter] = View(
    scatter_lines,
    filed_document("plot"),
    lambda result, path: scatter_page(result).write(path),
    lambda result, dpi: draw_scatter(result),
)
