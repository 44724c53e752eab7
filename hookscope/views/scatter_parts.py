"""What the text, the picture and the page of a scatter share: sentences, a table, groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hookscope.files.words import count_text, natural_order, percent_text, plural, shape_text
from hookscope.results.feature_scatter import FeatureScatter, ScatterPoint
from hookscope.views.text.shared_parts import count_cell, number_cell
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten

MOST_GROUPS = 12  # with a colour of their own
OTHERS = -1  # the style of points without a group, which are grey


@dataclass(frozen=True)
class PointGroup:
    """Points of one colour: their name, and the number of their style from 0; or ``OTHERS``."""

    name: str
    style: int
    points: tuple[ScatterPoint, ...]


def value_text(value: Any) -> str:
    """Return a value of a column; empty if a row has none."""
    return "" if value is None else str(value)


def has_numbers(result: FeatureScatter) -> bool:
    """Whether points are coloured on a scale: their values are numbers, and no few whole ones."""
    values = {point.value for point in result.points if isinstance(point.value, int | float)}
    told = [point.value for point in result.points if point.value is not None]
    if not told or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in told):
        return False
    return len(values) > MOST_GROUPS or any(not float(value).is_integer() for value in values)


def point_groups(result: FeatureScatter) -> tuple[PointGroup, ...]:
    """Return the points by category; those of rare ones, and those of none, come first and grey."""
    if result.color_by is None:
        return (PointGroup("", 0, result.points),)
    counts = Counter(value_text(point.value) for point in result.points if point.value is not None)
    shown = sorted((name for name, _ in counts.most_common(MOST_GROUPS)), key=natural_order)
    members: dict[str | None, list[ScatterPoint]] = {name: [] for name in shown}
    others: list[ScatterPoint] = []
    empty: list[ScatterPoint] = []
    for point in result.points:
        name = value_text(point.value)
        place = empty if point.value is None else members.get(name, others)
        place.append(point)
    rare = f"{plural(len(counts) - len(shown), 'other value')}"
    grey = [(rare, others), (f"no {result.color_by}", empty)]
    return (
        *(PointGroup(name, OTHERS, tuple(points)) for name, points in grey if points),
        *(PointGroup(name, style, tuple(members[name])) for style, name in enumerate(shown)),
    )


def scatter_title(result: FeatureScatter) -> str:
    """Return a sentence with the layer, the rows, the method, the colours and the variance."""
    colored = f", coloured by {result.color_by}" if result.color_by else ""
    shares = " and ".join(map(percent_text, result.explained))
    variance = f" The axes have {shares} of the variance." if shares else ""
    return (
        f"{result.key} ({shape_text(result.shape)}) of {result.model}:"
        f" {count_text(len(result.points))} of {plural(result.rows, 'row')} by {result.about}"
        f"{colored}.{variance}"
    )


def outlier_title(result: FeatureScatter) -> str:
    """Return a sentence on what an outlier is."""
    count = len(result.points[0].neighbors)
    which = "nearest row" if count == 1 else f"last of their {count} nearest rows"
    return f"The rows that are farthest from the {which} (Euclidean distance of the features):"


def axis_names(result: FeatureScatter) -> tuple[str, str]:
    """Return the titles of both axes, with the share of the variance of a principal one."""
    if not result.explained:
        name = result.about.partition(" ")[0]
        return f"{name} 1", f"{name} 2"
    first, second = (
        f"PC {n} ({percent_text(share)} of the variance)"
        for n, share in enumerate(result.explained, 1)
    )
    return first, second


def point_table(result: FeatureScatter, points: Iterable[ScatterPoint]) -> Table:
    """Return a row for each point."""
    columns = (
        *(Column("input"), Column("row", right=True), Column(result.color_by or "")),
        *(Column("distance", right=True), Column("x", right=True), Column("y", right=True)),
        Column("nearest rows"),
    )
    rows = (
        Row.of(
            Cell(point.name),
            count_cell(point.row),
            Cell(value_text(point.value)),
            *map(number_cell, (point.distance, point.x, point.y)),
            Cell(", ".join(map(str, point.neighbors))),
        )
        for point in points
    )
    kept = [i for i, column in enumerate(columns) if column.title]
    shown = (Row(tuple(row.cells[i] for i in kept)) for row in rows)
    squeeze = (*shorten("distance", "x", "y"), *drop("nearest rows", "y", "x", "row"))
    return Table(tuple(columns[i] for i in kept), tuple(shown), squeeze, note="")
