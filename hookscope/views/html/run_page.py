"""The page of training runs as plain data, and its HTML.

Header, findings and the table of numbers are HTML. The curves are data for the script: ``data`` as
JSON, and the values in blocks of base64 (``packed_values.py``), decoded when they are first drawn.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from markupsafe import Markup

from hookscope.views.html.packed_values import PackedValues
from hookscope.views.html.page import PageColumn, PageFinding, PageRow
from hookscope.views.html.page_template import fill_template

STYLES = ("page.css", "findings.css", "run_page.css")
SCRIPTS = (
    "glob.js",
    "filter.js",
    "table.js",
    "run_data.js",
    "run_axes.js",
    "run_curves.js",
    "run_waterfall.js",
    "run_layers.js",
    "run_page.js",
    "theme.js",
)


@dataclass(frozen=True)
class RunChart:
    """One chart of curves."""

    title: str
    sources: tuple[tuple[str, str], ...]
    log: bool = False
    line: float | None = None
    nonzero: bool = False


@dataclass(frozen=True)
class RunWaterfall:
    """One picture of layers by steps."""

    title: str
    group: str
    measure: str
    centre: float | None = None


@dataclass(frozen=True)
class PackedSeries:
    """One series of a run."""

    model: str
    layer: int
    label: str
    group: str
    measure: str
    table: int
    values: PackedValues


@dataclass(frozen=True)
class PackedAxis:
    """The columns of a table: the first and the last step of each, int32."""

    starts: PackedValues
    ends: PackedValues
    thinned: bool


@dataclass(frozen=True)
class PackedRun:
    """The curves of one run."""

    label: str
    axes: tuple[PackedAxis, ...]
    series: tuple[PackedSeries, ...]


@dataclass(frozen=True)
class PageLayer:
    """A layer, and the most serious level of its findings; empty without any."""

    name: str
    type: str
    level: str


@dataclass(frozen=True)
class PageModel:
    """A model of the runs, with its layers in execution order."""

    name: str
    type: str
    layers: tuple[PageLayer, ...]


@dataclass(frozen=True)
class RunPageData:
    """What the script draws."""

    runs: tuple[PackedRun, ...]
    models: tuple[PageModel, ...]
    optimizers: tuple[str, ...]
    charts: tuple[RunChart, ...]
    layer_charts: tuple[RunChart, ...]
    waterfalls: tuple[RunWaterfall, ...]

    def to_json(self) -> Markup:
        """Return it as JSON that is safe within a ``script`` element."""
        return Markup(json.dumps(asdict(self), separators=(",", ":")).replace("<", "\\u003c"))


@dataclass(frozen=True)
class RunPageSide:
    """The summary of one run.

    Attributes:
        letter: ``A``, ``B`` and so on if there are several runs, else empty.
        name: the name of the folder.
        command: the script and its arguments.
        verdict: status, steps and duration, in a sentence.
        warnings: why a part of the record is missing.
        facts: names and texts.
        unwatched: what was not watched, and why.
        events: what happened at single steps, as sentences.
    """

    letter: str
    name: str
    command: str
    verdict: str
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    unwatched: tuple[tuple[str, str], ...]
    events: tuple[str, ...]


@dataclass(frozen=True)
class RunPageRow:
    """A row of the table: a layer in one run."""

    run: int
    model: int
    layer: int
    row: PageRow


@dataclass(frozen=True)
class RunPage:
    """The content of the page; ``notes`` say what was thinned or left out."""

    title: str
    sides: tuple[RunPageSide, ...]
    findings: tuple[PageFinding, ...]
    notes: tuple[str, ...]
    columns: tuple[PageColumn, ...]
    rows: tuple[RunPageRow, ...]
    data: RunPageData
    blocks: tuple[str, ...]


def write_run_page(page: RunPage) -> str:
    """Return the page as HTML that opens from disk and needs no network."""
    return fill_template("run_page.html", STYLES, SCRIPTS, page)
