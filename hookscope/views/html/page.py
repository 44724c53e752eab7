"""The page of captures as plain data, and its HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from hookscope.escapes import visible
from hookscope.files.words import count_text
from hookscope.results.health import Finding
from hookscope.specs.patterns import layer_text
from hookscope.views.html.page_template import fill_template

STYLES = ("page.css",)
SCRIPTS = ("glob.js", "filter.js", "table.js", "tree.js", "graph.js", "page.js", "theme.js")

MAX_OTHERS = 8  # further layers of a finding that are named


@dataclass(frozen=True)
class PageFigure:
    """One figure, or the reason why it is missing."""

    title: str
    caption: str = ""
    image: str = ""
    width: int = 0
    height: int = 0
    labels: tuple[str, ...] = ()
    columns: int = 1
    svg: Markup = field(default_factory=Markup)
    failed: str = ""


@dataclass(frozen=True)
class PageCell:
    """One cell of the table. ``sort`` is a plain number; cells without one always come last."""

    text: str
    sort: str = ""
    loud: bool = False


@dataclass(frozen=True)
class PageColumn:
    """One column of the table; numbers sort as numbers."""

    title: str
    number: bool = False
    about: str = ""


@dataclass(frozen=True)
class PageRow:
    """One recorded or missing tensor; ``node`` is the index of its module in the tree."""

    node: int
    cells: tuple[PageCell, ...]
    missing: bool = False


@dataclass(frozen=True)
class TensorPanel:
    """One tensor in one file: facts, each a name and a text, and figures."""

    file: str
    facts: tuple[tuple[str, str], ...]
    figures: tuple[PageFigure, ...]
    note: str = ""


@dataclass(frozen=True)
class PanelEntry:
    """One tensor of a layer, with a panel for each file that has it."""

    key: str
    panels: tuple[TensorPanel, ...]


@dataclass(frozen=True)
class PageNode:
    """A module in the tree, and the content of its panel.

    ``level`` counts from 1, and so does ``place``, its position among ``siblings``. ``unused`` is
    whether it never ran in a file.
    """

    name: str
    label: str
    type: str
    level: int
    place: int
    siblings: int
    opens: bool
    calls: int
    unused: bool
    marks: tuple[str, ...]
    notes: tuple[str, ...]
    entries: tuple[PanelEntry, ...]
    shape: str
    follows: bool
    unfolded: bool


@dataclass(frozen=True)
class FileSummary:
    """The summary of one file."""

    letter: str
    file: str
    command: str
    verdict: str
    warnings: tuple[str, ...]
    sentences: tuple[str, ...]
    untrained: bool
    top: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    facts: tuple[tuple[str, str], ...]
    figures: tuple[PageFigure, ...]


@dataclass(frozen=True)
class Page:
    """The content of the page."""

    title: str
    sides: tuple[FileSummary, ...]
    chosen: tuple[str, ...]
    flow: tuple[PageFigure, ...]
    tree: tuple[PageNode, ...]
    columns: tuple[PageColumn, ...]
    rows: tuple[PageRow, ...]


def write_page(page: Page) -> str:
    """Return the page as HTML that opens from disk and needs no network."""
    return fill_template("page.html", STYLES, SCRIPTS, page)


@dataclass(frozen=True)
class PageFinding:
    """A finding."""

    level: str
    run: str
    layer: str
    link: str
    message: str
    hint: str
    others: str


def page_findings(findings: Sequence[Finding], links: Mapping[str, str]) -> tuple[PageFinding, ...]:
    """Return the findings for a page; ``links`` has the addresses of layers or tensors on it."""
    return tuple(
        PageFinding(
            finding.level,
            finding.run,
            visible(layer_text(finding.layer)) if finding.layer else "",
            links.get(finding.layer, ""),
            visible(finding.message),
            visible(finding.hint),
            _others_text(finding.others),
        )
        for finding in findings
    )


def _others_text(others: Sequence[str]) -> str:
    if not others:
        return ""
    more = f" and {count_text(len(others) - MAX_OTHERS)} more" if len(others) > MAX_OTHERS else ""
    names = ", ".join(visible(layer_text(name)) for name in others[:MAX_OTHERS])
    return f"Also: {names}{more}."
