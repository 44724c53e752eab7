"""Errors over the depth of a model: a line for each kind of error, on a page and in a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hookscope.escapes import visible
from hookscope.files.words import plural
from hookscope.views.display import Shown, text
from hookscope.views.html.page import Page, PageFigure, PageRow
from hookscope.views.html.svg import FlowLine, Point, decades, flow_figure, part_names
from hookscope.views.images.figures.canvas import (
    MARKERS,
    SERIES,
    WARNING,
    add_legend,
    draw_gridlines,
    escape_text,
    finish_figure,
    label_inches,
    name_ticks,
    new_figure,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing, paper_style, recording_caption
from hookscope.views.text.shared_parts import ALERT_STYLE, NOTICE_STYLE, number_cell
from hookscope.views.text.table import Cell, CollectedTables, Column
from hookscope.views.text.text_table import TextOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNFOLDED = 1_000_000  # cells: no sentence has several lines, and long lists of names are cut
_STROKES = (
    "Solid line",
    "Separate dots",
    "Dotted line",
)  # of the lines, as error_page.css draws them
_SCALE = (
    "Logarithmic scale. A hollow mark is an error of exactly zero (at the bottom), or an infinite"
    " one, such as where only one side has NaN (at the top)."
)

_STEP, _HEIGHT = 0.18, 2.8  # inches of a name, and of the panel
_NARROWEST, _UNNAMED = 3.0, 8.0  # inches of the panel: at least, and without names
_LEGEND = 1.8  # inches of the legend beside the panel
_LABELLED = 60  # names up to which each is written
_SPARSE = 200  # names up to which marks are large
_LETTERS = 32  # of a name


@dataclass(frozen=True)
class ErrorLine:
    """The errors of one kind, None where there is none; dots if they do not build on each other."""

    label: str
    values: Sequence[float | None]
    joined: bool = True


@dataclass(frozen=True)
class ErrorPage(Page):
    """The page: what was compared, the sentences with their classes, the drawing, the table."""

    template = "error_page.html"
    styles = ("error_page.css",)
    scripts = ("table.js",)

    about: str
    sentences: tuple[tuple[str, str], ...]
    figure: PageFigure
    columns: tuple[Column, ...]
    rows: tuple[PageRow, ...]


@dataclass(frozen=True)
class ErrorChart:
    """Errors of modules or tensors, in the order of execution.

    Attributes:
        title: of the drawing.
        about: what was compared.
        noun: what has an error, such as ``module``.
        names: of the modules or tensors.
        modules: that of each name.
        lines: at most three.
        first: the index of the first one that is wrong; None if none is.
        meaning: what is known of the first one, as the end of a sentence.
    """

    title: str
    about: str
    noun: str
    names: Sequence[str]
    modules: Sequence[str]
    lines: Sequence[ErrorLine]
    first: int | None
    meaning: str

    def page(self, result: Shown) -> ErrorPage:
        """Return the page of a result whose table begins with a row for each name."""
        collected = CollectedTables()
        lines = text(result, TextOptions(_UNFOLDED, tables=collected))
        table = collected.take()
        assert table is not None
        rows = tuple(
            PageRow(
                (number_cell(n), *map(_page_cell, table.pipe_cells(row))),
                f"#n{n}",
                {},
                f"n{n}",
                "missing" if row.missing else "",
            )
            for n, row in enumerate(table.rows, 1)
        )
        position = Column("#", right=True, about="position in the order of execution")
        return ErrorPage(
            self.title,
            self.about,
            tuple((x.plain, "loud" * (x.style == ALERT_STYLE)) for x in lines if x.plain),
            self.figure(),
            (position, *table.pipe_columns),
            rows,
        )

    def figure(self) -> PageFigure:
        """Return the drawing of a page; a point leads to the row with its number."""
        names = list(map(visible, self.names))
        drawn = [
            FlowLine(
                [
                    Point(n, names[n], n + 1, value)
                    for n, value in enumerate(line.values)
                    if value is not None
                ],
                f", {line.label}",
                line.joined,
            )
            for line in self.lines
        ]
        strokes = zip(_STROKES, self.lines, strict=False)
        caption = [*(f"{stroke}: {line.label}." for stroke, line in strokes), _SCALE]
        mark = None
        if self.first is not None:
            mark = self.first, names[self.first]
            caption.append(f"The marked {self.noun}, {mark[1]}, {self.meaning}.")
        parts = part_names(self.modules)
        return flow_figure(self.title, " ".join(caption), drawn, parts, mark)

    def draw(self) -> Drawing:
        """Draw one panel, with the first name at the left."""
        names = [shorten_middle(visible(name), _LETTERS) for name in self.names]
        is_labelled = len(names) <= _LABELLED
        below = label_inches(map(escape_text, names)) if is_labelled else 0.3
        width = max(len(names) * _STEP, _NARROWEST) if is_labelled else _UNNAMED
        with paper_style(dark=False):
            figure, _ = new_figure(width + 1.0 + _LEGEND, _HEIGHT + below, self.title, self.about)
            axes = figure.subplots()
            self._draw_lines(axes, 0 if is_labelled else 1)  # as names, or as in the table
            axes.set_ylabel("relative error")
            if is_labelled:
                name_ticks(axes.xaxis, names)
                axes.tick_params(axis="x", rotation=90)
            else:
                axes.set_xlabel(f"number of the {self.noun}")
            draw_gridlines(axes)
            add_legend(axes)
            finish_figure(figure)
        return Drawing(figure, "diff", (f"errors of {plural(len(names), self.noun)}",))

    def _draw_lines(self, axes: Axes, start: int) -> None:
        low, high = decades(v for line in self.lines for v in line.values if v is not None)
        bottom, top = 10.0**low, 10.0**high
        axes.set_yscale("log")
        axes.set_ylim(bottom, top)
        size = 4.0 if len(self.names) <= _SPARSE else 1.5
        zeros: list[tuple[int, float]] = []
        infinite: list[tuple[int, float]] = []
        for number, line in enumerate(self.lines):
            numbered = enumerate(line.values, start)
            points = [(n, value) for n, value in numbered if value is not None]
            zeros += [(n, bottom) for n, value in points if not value]
            infinite += [(n, top) for n, value in points if not math.isfinite(value)]
            axes.plot(
                [n for n, _ in points],
                [min(max(value, bottom), top) for _, value in points],
                color=SERIES[number],
                linestyle=("-", "none", ":")[number],
                linewidth=1.0,
                marker=MARKERS[number] if number < 2 else "",
                markersize=size if number else size / 2,
                clip_on=False,
                label=line.label,
            )
        for marks, label in ((zeros, "zero"), (infinite, "infinite")):
            if marks:
                axes.plot(
                    *zip(*marks, strict=True),
                    color=WARNING if label == "infinite" else "#6b7178",
                    linestyle="none",
                    marker="o",
                    markerfacecolor="white",
                    markersize=size + 1,
                    clip_on=False,
                    label=label,
                )
        if self.first is not None:
            self._mark_first(axes, self.first, start)

    def _mark_first(self, axes: Axes, first: int, start: int) -> None:
        axes.axvline(start + first, color=WARNING, linewidth=0.8, linestyle="--")
        axes.text(
            start + first,
            1.03,
            escape_text(shorten_middle(visible(self.names[first]), _LETTERS)),
            transform=axes.get_xaxis_transform(),
            ha="left" if 2 * first < len(self.names) else "right",
            color=WARNING,
        )


def _page_cell(cell: Cell) -> Cell:
    """The cell of a page, where only what is wrong has a colour."""
    style = cell.style if cell.style in (ALERT_STYLE, NOTICE_STYLE) else ""
    return replace(cell, text=visible(cell.text), style=style)


def compared_text(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Return what was compared, from the metadata of both sides."""
    names = (
        recording_caption(dict(side))
        if "model" in side
        else os.path.basename(str(side.get("file", "")))
        for side in (a, b)
    )
    return " ".join(f"{side}: {visible(name)}." for side, name in zip("AB", names, strict=True))
