"""A page with maps of layers by positions or heads: of the logit lens and a sweep."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hookscope.files.atomic_files import write_text
from hookscope.views.html.page_template import fill_template

_STYLES = ("page.css", "layer_map_page.css")
_SCRIPTS = ("theme.js",)
LEVELS = 10  # of the colours in layer_map_page.css, from 0


@dataclass(frozen=True)
class LayerMapCell:
    """One cell."""

    text: str
    color: str
    details: str


@dataclass(frozen=True)
class LayerMapRow:
    """One layer of a map."""

    layer: str
    cells: tuple[LayerMapCell, ...]


@dataclass(frozen=True)
class LayerMap:
    """One map, its layers from the last to the first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[LayerMapRow, ...]


@dataclass(frozen=True)
class LayerMapPage:
    """What the template shows."""

    title: str
    caption: str
    meaning: tuple[str, ...]
    notes: tuple[str, ...]
    scale: tuple[str, ...]
    color: str
    corner: str
    maps: tuple[LayerMap, ...]


def write_layer_map_page(page: LayerMapPage, path: str | os.PathLike[str]) -> int:
    """Write a page; return its size in bytes."""
    return write_text(path, fill_template("layer_map_page.html", _STYLES, _SCRIPTS, page))
