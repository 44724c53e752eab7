"""The page as plain data: what ``build`` makes of a capture, and the template writes down."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True)
class PageFigure:
    """One picture, or the reason why there is none.

    Attributes:
        title: what it shows, for those who see it and those who do not.
        caption: what was drawn and how, in a sentence.
        image: a ``data:`` address of a PNG; empty for the others.
        width: pixels of the image.
        height: pixels of the image.
        labels: a text for each cell of a grid, row by row; empty without a grid.
        columns: cells in a row of that grid.
        svg: a drawing, for a figure without an image.
        failed: why it could not be drawn.
    """

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
    """One cell of the table. ``sort`` is a plain number; empty, it comes last however sorted."""

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
    """One recorded tensor, or one that is missing; ``node`` is its module's place in the tree."""

    node: int
    cells: tuple[PageCell, ...]
    missing: bool = False


@dataclass(frozen=True)
class TensorPanel:
    """What one file holds of a tensor: facts of a name and a text, and its figures."""

    file: str
    facts: tuple[tuple[str, str], ...]
    figures: tuple[PageFigure, ...]
    note: str = ""


@dataclass(frozen=True)
class PanelEntry:
    """One tensor of a layer, as each of the files has it."""

    key: str
    looks: tuple[TensorPanel, ...]


@dataclass(frozen=True)
class PageNode:
    """A module in the tree, with its place among its siblings, and what its panel holds.

    ``level`` counts from 1, ``place`` of ``siblings`` too. ``notes`` are sentences on what never
    ran or does not exist. ``marks`` are words that must not be overlooked.
    """

    name: str
    label: str
    type: str
    level: int
    place: int
    siblings: int
    opens: bool
    calls: int
    marks: tuple[str, ...]
    notes: tuple[str, ...]
    entries: tuple[PanelEntry, ...]


@dataclass(frozen=True)
class FileSummary:
    """What the page tells of one file as a whole.

    Attributes:
        letter: ``A`` or ``B`` where there are two, else empty.
        file: the file's name.
        command: the line that makes it again; empty where Python made it.
        verdict: one sentence.
        warnings: sentences, the gravest first.
        told: further sentences: the loss, what edits did, coverage.
        top: the likeliest classes of each image: its name, and rows of a label and a probability.
        facts: where it came from: names and texts.
        pictures: the images that went in.
    """

    letter: str
    file: str
    command: str
    verdict: str
    warnings: tuple[str, ...]
    told: tuple[str, ...]
    top: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    facts: tuple[tuple[str, str], ...]
    pictures: tuple[PageFigure, ...]


@dataclass(frozen=True)
class Page:
    """All that the page shows."""

    title: str
    sides: tuple[FileSummary, ...]
    chosen: tuple[str, ...]
    flow: tuple[PageFigure, ...]
    tree: tuple[PageNode, ...]
    columns: tuple[PageColumn, ...]
    rows: tuple[PageRow, ...]


STYLES = ("page.css",)

SCRIPTS = ("glob.js", "table.js", "tree.js", "page.js")


def write_page(page: Page) -> str:
    """Return the page as HTML that opens from a disk and asks nothing of any network."""
    style, script = _joined_text(STYLES), _joined_text(SCRIPTS)
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_content_hash(style)}'",
            f"script-src '{_content_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    template = _environment().get_template("page.html")
    # Both are our own files, in which nothing of a capture stands.
    return template.render(page=page, policy=policy, style=Markup(style), script=Markup(script))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("hookscope.views.html", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _joined_text(names: tuple[str, ...]) -> str:
    folder = files("hookscope.views.html")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _content_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
