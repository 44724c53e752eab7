"""The page of a scatter: points with names and images, outliers, nearest rows."""

from __future__ import annotations

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
_WIDTH, _HEIGHT, _EDGE = 760, 560, 40
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
    places = _places(result)
    points = Markup().join(
        Markup(
            '<path class="point {}" data-row="{}" data-near="{}" d="M{} {}{}">'
            "<title>{}</title></path>"
        ).format(
            styles.of_rows[point.row][0],
            point.row,
            " ".join(map(str, point.neighbors)),
            *place,
            styles.of_rows[point.row][1],
            _about(result, point),
        )
        for point, place in zip(result.points, places, strict=True)
    )
    across, up = axis_names(result)
    svg = Markup(
        '<svg viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        '<path class="rule" d="M{3} 8V{4}H{5}"/>{6}'
        '<text x="{7}" y="{8}" text-anchor="middle">{9}</text>'
        '<text transform="translate(14 {10}) rotate(-90)" text-anchor="middle">{11}</text></svg>'
    ).format(
        *(_WIDTH, _HEIGHT, f"Points of {result.key}", _EDGE, _HEIGHT - _EDGE, _WIDTH - 8, points),
        *(_WIDTH // 2, _HEIGHT - 12, across, _HEIGHT // 2, up),
    )
    thumbnails = Markup().join(
        starmap(Markup('<img alt="" data-row="{}" src="{}">').format, images.items())
    )
    return Markup('{}{}<p id="pointed" aria-live="polite"></p><div hidden>{}</div>').format(
        svg, styles.groups, thumbnails
    )


def _places(result: FeatureScatter) -> list[tuple[float, float]]:
    """Where each point is in the drawing; both axes of a PCA have the same scale."""
    values = np.array([(point.x, point.y) for point in result.points])
    low, span = values.min(axis=0), np.ptp(values, axis=0)
    room = np.array([_WIDTH - _EDGE - 30, _HEIGHT - _EDGE - 30], np.float64)
    scale = room / np.where(span > 0, span, 1)
    if result.explained:
        scale[:] = scale[span > 0].min()
    shifted = (values - low - span / 2) * scale
    center = np.array([_EDGE + 11, 19]) + room / 2
    return [(round(float(center[0] + x), 1), round(float(center[1] - y), 1)) for x, y in shifted]


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
