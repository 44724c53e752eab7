"""The page of a scatter: points with names and images, outliers, nearest rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np
from markupsafe import Markup

from hookscope.escapes import visible
from hookscope.files.words import count_text, plural
from hookscope.results.feature_scatter import FeatureScatter, ScatterPoint
from hookscope.views.html.analysis_page import (
    LEVELS,
    AnalysisPage,
    PageDrawing,
    PageMap,
    color_class,
)
from hookscope.views.html.page_images import png_data_uri
from hookscope.views.images.colors import ColorScale, color_scale
from hookscope.views.images.figures.canvas import MARKERS, SERIES
from hookscope.views.images.input_pictures import small_image
from hookscope.views.scatter_parts import (
    OTHERS,
    axis_names,
    has_numbers,
    outlier_title,
    point_groups,
    point_table,
    scatter_title,
    value_text,
)

MOST_IMAGES = 400  # in a page
MOST_LISTED = 200  # rows whose neighbours are listed; of more, only those of the outliers
_IMAGE_SIDE = 64  # pixels
_WIDTH, _HEIGHT = 760, 560
_LEFT, _BELOW, _MARGIN = 68, 52, 8  # beside the axes, and on the other sides
_ROOM = 11  # between the outermost points and the edges
_TICKS = 8  # numbers on an axis, at most
# The marks of the figure, each around the origin.
_MARKS = {
    "o": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "s": "m-3.5-3.5h7v7h-7z",
    "^": "m0-4.5l4.4 8h-8.8z",
    "D": "m0-5l5 5l-5 5l-5-5z",
    "v": "m0 4.5l4.4-8h-8.8z",
    "P": "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "h": "m0-4.5l3.9 2.25v4.5l-3.9 2.25l-3.9-2.25v-4.5z",
}


@dataclass(frozen=True)
class ScatterPage(AnalysisPage):
    """The page; a script shows what the mouse points at."""

    styles = ("analysis_page.css", "scatter_page.css")
    scripts = ("scatter.js",)

    def style(self) -> str:
        """Return the style sheet, with the colours of the groups."""
        rules = (f".point.s{i} {{ fill: {color}; }}\n" for i, color in enumerate(SERIES))
        return super().style() + "".join(rules)


@dataclass(frozen=True)
class _Styles:
    """The class and the mark of each point, and the legend of colours or of groups."""

    of_rows: dict[int, tuple[str, str]]
    legend: tuple[tuple[str, str], ...]
    groups: Markup


def scatter_page(result: FeatureScatter) -> ScatterPage:
    """Return the page."""
    styles = _number_styles(result) if has_numbers(result) else _group_styles(result)
    images, left_out = _images(result)
    listed = result.points if len(result.points) <= MOST_LISTED else result.outliers
    title = "Nearest rows" if listed is result.points else "Nearest rows of the outliers"
    return ScatterPage(
        f"Rows of {result.key}",
        visible(scatter_title(result)),
        (
            "Point at a mark for its input, and for its nearest rows, which get a ring. Distances"
            " are those of the features, not those of the picture.",
            *left_out,
        ),
        result.notes,
        (
            PageDrawing("", "scatter", _drawing(result, styles, images)),
            PageMap.of_table(
                f"Outliers. {outlier_title(result)[:-1]}", point_table(result, result.outliers)
            ),
            _neighbor_map(result, listed, title),
        ),
        styles.legend,
    )


def _drawing(result: FeatureScatter, styles: _Styles, images: dict[int, str]) -> Markup:
    """The points and the axes as SVG, the groups, and the images that the script shows."""
    axes = _axes(result)
    points = Markup().join(
        Markup(
            '<path class="point {}" data-row="{}" data-near="{}" d="M{} {}{}">'
            "<title>{}</title></path>"
        ).format(
            styles.of_rows[point.row][0],
            point.row,
            " ".join(map(str, point.neighbors)),
            *(axis.place(value) for axis, value in zip(axes, (point.x, point.y), strict=True)),
            styles.of_rows[point.row][1],
            _about(result, point),
        )
        for point in result.points
    )
    across, up = axis_names(result)
    bottom, right = _HEIGHT - _BELOW, _WIDTH - _MARGIN
    rules = [f"M{_LEFT} {_MARGIN}V{bottom}H{right}"]
    numbers = Markup()
    for number, x in axes[0].ticks():
        rules.append(f"M{x} {bottom}v5")
        numbers += Markup('<text class="across" x="{}" y="{}">{}</text>').format(
            x, bottom + 18, number
        )
    for number, y in axes[1].ticks():
        rules.append(f"M{_LEFT} {y}h-5")
        numbers += Markup('<text class="up" x="{}" y="{}">{}</text>').format(
            _LEFT - 8, y + 4, number
        )
    svg = Markup(
        '<svg viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        '<path class="rule" d="{3}"/>{4}{5}'
        '<text class="across" x="{6}" y="{7}">{8}</text>'
        '<text class="across" transform="translate(18 {9}) rotate(-90)">{10}</text></svg>'
    ).format(
        *(_WIDTH, _HEIGHT, f"Points of {result.key}", "".join(rules), numbers, points),
        *((_LEFT + right) // 2, _HEIGHT - 10, across, (_MARGIN + bottom) // 2, up),
    )
    thumbnails = Markup().join(
        starmap(Markup('<img alt="" data-row="{}" src="{}">').format, images.items())
    )
    return Markup('{}{}<p id="pointed" aria-live="polite"></p><div hidden>{}</div>').format(
        svg, styles.groups, thumbnails
    )


@dataclass(frozen=True)
class _Axis:
    """Where the values along an axis are in the drawing, from ``start`` to ``end`` in pixels."""

    start: float
    end: float
    middle: float
    scale: float

    def place(self, value: float) -> float:
        """Return the pixel of a value."""
        sign = 1 if self.end > self.start else -1
        return round((self.start + self.end) / 2 + sign * (value - self.middle) * self.scale, 1)

    def ticks(self) -> list[tuple[str, float]]:
        """Return round numbers as texts, and their pixels."""
        half = abs(self.end - self.start) / 2 / self.scale
        low, high = self.middle - half, self.middle + half
        step = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
        step *= next(n for n in (1, 2, 5, 10) if n * step * _TICKS >= high - low)
        counts = range(math.ceil(low / step), math.floor(high / step) + 1)
        # As many digits as tell neighbours apart.
        digits = max(6, math.ceil(math.log10(max(abs(low), abs(high)) / step)) + 1)
        return [(f"{n * step:.{digits}g}", self.place(n * step)) for n in counts]


def _axes(result: FeatureScatter) -> tuple[_Axis, _Axis]:
    """Return both axes; those of a PCA have the same scale."""
    values = np.array([(point.x, point.y) for point in result.points])
    low, span = values.min(axis=0), np.ptp(values, axis=0)
    ends = (_LEFT, _WIDTH - _MARGIN), (_HEIGHT - _BELOW, _MARGIN)
    room = np.array([abs(end - start) - 2 * _ROOM for start, end in ends], np.float64)
    scale = room / np.where(span > 0, span, np.maximum(np.abs(low), 1))
    if result.explained and span.any():
        scale[:] = scale[span > 0].min()
    middle = low + span / 2
    across, up = (_Axis(*ends[n], float(middle[n]), float(scale[n])) for n in range(2))
    return across, up


def _about(result: FeatureScatter, point: ScatterPoint) -> str:
    value = f", {result.color_by}: {value_text(point.value)}" if point.value is not None else ""
    return visible(f"{point.name} (row {point.row}{value})")


def _number_styles(result: FeatureScatter) -> _Styles:
    values = {p.row: float("nan") if p.value is None else float(p.value) for p in result.points}
    scale = color_scale(np.array(list(values.values())))
    scale = ColorScale(scale.low, scale.high)
    shares = scale.position(np.array(list(values.values())))
    classes = (color_class(scale, float(share)) for share in shares)
    levels = (level / LEVELS for level in range(LEVELS + 1))
    legend = tuple(
        (f"{scale.low + share * (scale.high - scale.low):.4g}", color_class(scale, share))
        for share in levels
    )
    rows = {row: (name, _MARKS["o"]) for row, name in zip(values, classes, strict=True)}
    return _Styles(rows, legend, Markup())


def _group_styles(result: FeatureScatter) -> _Styles:
    rows: dict[int, tuple[str, str]] = {}
    items = []
    for group in point_groups(result):
        grey = group.style == OTHERS
        name = "others" if grey else f"s{group.style % len(SERIES)}"
        mark = _MARKS["o" if grey else MARKERS[group.style % len(MARKERS)]]
        rows |= {point.row: (name, mark) for point in group.points}
        items.append(
            Markup(
                '<li><svg viewBox="-6 -6 12 12" aria-hidden="true"><path class="point {}"'
                ' d="M0 0{}"/></svg>{} ({})</li>'
            ).format(name, mark, visible(group.name), count_text(len(group.points)))
        )
    named = Markup('<ol class="groups" aria-label="{}">{}</ol>')
    shown = named.format(result.color_by, Markup().join(items)) if result.color_by else Markup()
    return _Styles(rows, (), shown)


def _images(result: FeatureScatter) -> tuple[dict[int, str], list[str]]:
    """The images of inputs by row, those of outliers first, and a sentence on what is left out."""
    ordered = list(dict.fromkeys([*result.outliers, *result.points]))
    images, missing = {}, 0
    for point in ordered[:MOST_IMAGES]:
        pixels = small_image(point.name, point.sha256, _IMAGE_SIDE, result.places)
        if isinstance(pixels, str):
            missing += 1
            continue
        opaque = np.full((*pixels.shape[:2], 4), 255, np.uint8)
        opaque[..., :3] = pixels
        images[point.row] = png_data_uri(opaque)
    over = max(len(ordered) - MOST_IMAGES, 0) if images else 0
    notes = []
    if images and missing:
        notes.append(
            f"{plural(missing, 'input')} without a picture: the file is gone, changed, not an"
            " image, or elsewhere (see --input)."
        )
    if over:
        notes.append(f"{plural(over, 'more image')} left out: a page has at most {MOST_IMAGES}.")
    return images, notes


def _neighbor_map(result: FeatureScatter, listed: Sequence[ScatterPoint], title: str) -> PageMap:
    """A row for each point with the inputs of its nearest rows."""
    drawn = {point.row: point for point in result.points}
    columns = tuple(f"{n}" for n in range(1, len(result.points[0].neighbors) + 1))
    rows = tuple(
        (
            _about(result, point),
            tuple(
                (_about(result, drawn[row]) if row in drawn else f"row {row}", "", "")
                for row in point.neighbors
            ),
        )
        for point in listed
    )
    return PageMap(title, "input", columns, rows)
