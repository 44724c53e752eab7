"""Similarities of layers as a page: the matrix as a table."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from hookscope.files.atomic_files import write_text
from hookscope.files.words import number_text
from hookscope.results.layer_similarity import LayerSimilarity
from hookscope.views.html.page_template import fill_template
from hookscope.views.text.similar import number, short_names, similarity_title

_STYLES = ("page.css", "layer_map_page.css")
_SCRIPTS = ("theme.js",)
_LEVELS = 10  # of similarity, in layer_map_page.css


@dataclass(frozen=True)
class SimilarityPageCell:
    """One pair of layers: its number, the level of its colour, and what is shown on pointing."""

    number: str
    level: int | str
    details: str


@dataclass(frozen=True)
class SimilarityPage:
    """What the template fills in."""

    title: str
    caption: str
    notes: tuple[str, ...]
    scale: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[SimilarityPageCell, ...]], ...]


def write_similarity_page(result: LayerSimilarity, path: str | os.PathLike[str]) -> int:
    """Write the page of a matrix; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier file is not changed.
    """
    names, others = short_names(result.a), short_names(result.columns)
    page = SimilarityPage(
        title=f"Similarity of layers: {result.title}",
        caption=similarity_title(result),
        notes=result.notes,
        scale=tuple(f"{level / _LEVELS:.1f}" for level in range(_LEVELS + 1)),
        columns=tuple(others),
        rows=tuple(
            (name, tuple(_cell(name, other, v) for other, v in zip(others, values, strict=True)))
            for name, values in zip(names, result.values, strict=True)
        ),
    )
    return write_text(path, fill_template("similarity_page.html", _STYLES, _SCRIPTS, page))


def _cell(name: str, other: str, value: float) -> SimilarityPageCell:
    level = "nan" if math.isnan(value) else round(max(value, 0.0) * _LEVELS)
    return SimilarityPageCell(number(value), level, f"{name}, {other}: {number_text(value, 6)}")
