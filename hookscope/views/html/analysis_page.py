"""The page of what was computed of a model: maps of layers, flame graphs, or coloured texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from markupsafe import Markup

from hookscope.escapes import visible
from hookscope.views.html.page import Page
from hookscope.views.images.colors import DIVERGING, NAN, SEQUENTIAL, ColorScale, is_bright
from hookscope.views.text.table import Row, Table

LEVELS = 10  # of colour on each side of zero, or from zero

PageCell = tuple[str, str, str]  # its text, the class of its colour, and what is said on pointing


@dataclass(frozen=True)
class PageMap:
    """A map: its columns, and the cells of each row after the name of the row."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[PageCell, ...]], ...]

    @classmethod
    def of_table(cls, title: str, table: Table) -> PageMap:
        """Return the table of a result as a map without colours."""
        names = tuple(column.title for column in table.columns)
        return cls(title, names[0], names[1:], tuple(map(_page_row, table.rows)))


def _page_row(row: Row) -> tuple[str, tuple[PageCell, ...]]:
    name, *cells = row.cells
    shown = ((visible(x.text), "" if x.value is None else "number", "") for x in cells)
    return visible(name.full or name.text), tuple(shown)


@dataclass(frozen=True)
class PageText:
    """A text with its tokens, each with a cell that has its score, its position and its name."""

    title: str
    tokens: tuple[tuple[PageCell, int, str], ...]
    sums: str


@dataclass(frozen=True)
class PageDrawing:
    """A drawing; ``kind`` is its class in the style sheet, ``flame`` or ``scatter``."""

    title: str
    kind: str
    drawing: Markup


@dataclass(frozen=True)
class AnalysisPage(Page):
    """The page; ``legend`` has the texts of colours and their classes."""

    template = "analysis_page.html"
    styles: ClassVar[tuple[str, ...]] = ("analysis_page.css",)

    caption: str
    meaning: tuple[str, ...]
    notes: tuple[str, ...]
    parts: tuple[PageMap | PageText | PageDrawing, ...]
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
    texts = (
        (name, bytes(map(int, color)).hex(), is_bright(color)) for name, color in rules.items()
    )
    return "".join(
        f".{name} {{ background: #{color}; fill: #{color};"
        f" color: {'#1b2027' if bright else '#ffffff'}; }}\n"
        for name, color, bright in texts
    )
