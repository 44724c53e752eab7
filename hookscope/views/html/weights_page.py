"""The page of a set of weights as plain data, and its HTML."""

from __future__ import annotations

from dataclasses import dataclass

from hookscope.views.html.page import PageColumn, PageFinding, PageRow
from hookscope.views.html.page_template import fill_template

STYLES = ("page.css", "findings.css", "weights_page.css")
SCRIPTS = ("glob.js", "filter.js", "table.js", "tree.js", "weights_page.js", "theme.js")


@dataclass(frozen=True)
class WeightGroup:
    """Tensors that have something in common, such as a dtype: how many, and their size."""

    name: str
    tensors: str
    parameters: str
    size: str
    share: int


@dataclass(frozen=True)
class WeightsPageNode:
    """A module in the tree: its position in it, and how many parameters are inside.

    ``level`` and ``place`` count from 1; ``place`` is the position among ``siblings``. ``mark`` is
    the most serious level of the findings inside; empty without any.
    """

    name: str
    label: str
    level: int
    place: int
    siblings: int
    opens: bool
    parameters: str
    mark: str


@dataclass(frozen=True)
class WeightRow:
    """A row of the table: a tensor, and its histogram."""

    name: str
    row: PageRow
    bars: str
    columns: int
    about: str
    level: str


@dataclass(frozen=True)
class WeightsPage:
    """The content of the page."""

    title: str
    command: str
    verdict: str
    sentences: tuple[str, ...]
    dtypes: tuple[WeightGroup, ...]
    modules: tuple[WeightGroup, ...]
    metadata: tuple[tuple[str, str], ...]
    findings: tuple[PageFinding, ...]
    tree: tuple[WeightsPageNode, ...]
    columns: tuple[PageColumn, ...]
    rows: tuple[WeightRow, ...]


def write_weights_page(page: WeightsPage) -> str:
    """Return the page as HTML that opens from disk and needs no network."""
    return fill_template("weights_page.html", STYLES, SCRIPTS, page)
