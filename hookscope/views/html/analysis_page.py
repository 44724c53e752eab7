"""The page of what was computed of a model: maps of layers, flame graphs, or coloured texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup

from hookscope.views.html.page import Page
from hookscope.views.images.colors import DIVERGING, NAN, SEQUENTIAL, ColorScale, is_bright

LEVELS = 10  # of colour on each side of zero, or from zero

PageCell = tuple[str, str, str]  # its text, the class of its colour, and what is said on pointing


@dataclass(frozen=True)
class PageMap:
    """A map: its columns, and the cells of each row after the name of the row."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[PageCell, ...]], ...]


@dataclass(frozen=True)
class PageText:
    """A text with its tokens, each with a cell that has its score, its position and its name."""

    title: str
    tokens: tuple[tuple[PageCell, int, str], ...]
    sums: str


@dataclass(frozen=True)
class PageFlame:
    """A flame graph: calls as bars above those that they made, as wide as they took long."""

    title: str
    flame: Markup


@dataclass(frozen=True)
class AnalysisPage(Page):
    """The page; ``legend`` has the texts of colours and their classes."""

    template = "analysis_page.html"
    styles = ("analysis_page.css",)

    caption: str
    meaning: tuple[str, ...]
    notes: tuple[str, ...]
    parts: tuple[PageMap | PageText | PageFlame, ...]
    legend: tuple[tuple[str, str], ...] = ()

    def style(self) -> str:
        """Return the style sheet, with the colours of the two tables."""
        return super().style() + _color_rules()


def color_class(scale: ColorScale, share: float) -> str:
    """Return the class of the colour at a share from 0 to 1 of a scale."""
    if math.isnan(share):
        return "nan"
    return f"d{round(share * 2 * LEVELS)}" if scale.diverging else f"p{round(share * LEVELS)}"


@cache
def _color_rules() -> str:
    rules = {"nan": NAN}
    for letter, table, levels in (("p", SEQUENTIAL, LEVELS), ("d", DIVERGING, 2 * LEVELS)):
        rules |= {f"{letter}{n}": table[round(255 * n / levels)] for n in range(levels + 1)}
    return "".join(
        f".{name} {{ background: #{bytes(map(int, color)).hex()};"
        f" color: {'#1b2027' if is_bright(color) else '#ffffff'}; }}\n"
        for name, color in rules.items()
    )
