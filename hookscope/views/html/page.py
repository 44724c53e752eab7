"""A page of HTML: its template with script and style written into it, and what pages share.

Script and style are allowed by their hashes, images as ``data:``: an unescaped name runs nothing.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hookscope.escapes import encodable, visible
from hookscope.files.atomic_files import write_text
from hookscope.files.words import count_text
from hookscope.results.health import Finding
from hookscope.specs.patterns import layer_text
from hookscope.views.text.table import Cell

MAX_OTHERS = 8  # further layers of a finding that are named


@dataclass(frozen=True)
class Page:
    """What a page shows; each kind of page names its template, and its own styles and scripts."""

    template: ClassVar[str]
    styles: ClassVar[tuple[str, ...]] = ()
    scripts: ClassVar[tuple[str, ...]] = ()

    title: str

    def html(self) -> str:
        """Return the page as HTML that opens from disk and needs no network."""
        style, script = self.style(), _joined_text((*self.scripts, "theme.js"))
        policy = (
            f"default-src 'none'; img-src data:; style-src '{_content_hash(style)}';"
            f" script-src '{_content_hash(script)}'; base-uri 'none'; form-action 'none'"
        )
        template = _environment().get_template(self.template)
        # Both are files of this package, without any content of a result.
        values = {"style": Markup(style), "script": Markup(script)}
        return encodable(template.render(page=self, policy=policy, **values))

    def style(self) -> str:
        """Return the style sheet."""
        return _joined_text(("page.css", *self.styles))

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write the page; return its size in bytes."""
        return write_text(path, self.html())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("hookscope.views.html", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sort_text"] = _sort_text
    return environment


def _sort_text(cell: Cell) -> str:
    """The number by which a cell is sorted; cells without one always come last."""
    return "" if cell.value is None or math.isnan(cell.value) else repr(cell.value)


@cache
def _joined_text(names: tuple[str, ...]) -> str:
    folder = files("hookscope.views.html")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _content_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


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
class PageRow:
    """A row of a table: its cells, the address that its name leads to, and what scripts read.

    ``kind`` is ``missing``, the level of its findings, or empty.
    """

    cells: tuple[Cell, ...]
    link: str
    data: Mapping[str, int]
    id: str = ""
    kind: str = ""


@dataclass(frozen=True)
class TreeItem:
    """A module in a tree: ``level`` and ``place``, its position among ``siblings``, begin at 1."""

    name: str
    label: str
    level: int
    place: int
    siblings: int
    opens: bool


@dataclass(frozen=True)
class Summary:
    """What is known of a file or of a run as a whole.

    ``top`` has titles, each with names and shares; ``unwatched`` has what was not watched, and why.
    """

    letter: str
    name: str
    command: str
    verdict: str
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...] = ()
    untrained: bool = False
    top: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    figures: tuple[PageFigure, ...] = ()
    unwatched: tuple[tuple[str, str], ...] = ()
    events: tuple[str, ...] = ()


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
