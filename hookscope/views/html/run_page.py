"""The page of training runs as plain data, and its HTML.

Header, findings and the table of numbers are HTML. The curves are data for the script: ``data`` as
JSON, and the values in blocks of base64 (``packed_values.py``), decoded when they are first drawn.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from markupsafe import Markup

from hookscope.stores.runs.series import Series
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

OUTPUT, OUTPUT_GRAD = "output", "output.grad"
PARAMETER, PARAMETER_GRAD, UPDATE = "parameter", "parameter.grad", "parameter.update"
RATIO_AIM = 1e-3  # what an update over its weight is compared with
_OUTPUT = re.compile(r"output(\.|$)")


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


CHARTS = (
    RunChart("Loss", (("loss", "value"),)),
    RunChart("Gradient norm of all parameters", (("gradients", "norm"),), log=True),
    RunChart(
        "Share of the gradient norm that clipping removed",
        (("gradients", "clipped"),),
        nonzero=True,
    ),
    RunChart("Learning rate", (("groups", "lr"),)),
    RunChart("Seconds per step", (("step", "seconds"),)),
    RunChart("Loss scale", (("loss_scale", "value"),), log=True),
    RunChart("Steps skipped by the gradient scaler", (("loss_scale", "skipped"),), nonzero=True),
)
LAYER_CHARTS = (
    RunChart("Activation rms", ((OUTPUT, "rms"),), log=True),
    RunChart("Largest activation", ((OUTPUT, "max"),), log=True),
    RunChart("Share of zeros and of dead units", ((OUTPUT, "zeros"), (OUTPUT, "dead"))),
    RunChart("Gradient norm at the output", ((OUTPUT_GRAD, "norm"),), log=True),
    RunChart("Norm of parameters", ((PARAMETER, "norm"),)),
    RunChart("Gradient norm of parameters", ((PARAMETER_GRAD, "norm"),), log=True),
    RunChart("Update over weight", ((UPDATE, "ratio"),), log=True, line=RATIO_AIM),
    RunChart("Adam's rms", ((PARAMETER, "adam_rms"),), line=1.0),
    RunChart(
        "Entries that are NaN or infinite",
        ((OUTPUT, "nonfinite"), (OUTPUT_GRAD, "nonfinite"), (PARAMETER_GRAD, "nonfinite")),
        nonzero=True,
    ),
)
WATERFALLS = (
    RunWaterfall("Activation rms", OUTPUT, "rms"),
    RunWaterfall("Gradient norm of parameters", PARAMETER_GRAD, "norm"),
    RunWaterfall("Update over weight", UPDATE, "ratio", centre=RATIO_AIM),
)
_DRAWN = {source for chart in (*CHARTS, *LAYER_CHARTS) for source in chart.sources}


def series_group(series: Series) -> str:
    """Return what a series is of, whatever the name of its parameter or of its output.

    >>> series_group(Series("Net", "conv1/bias.grad", "norm"))
    'parameter.grad'
    >>> series_group(Series("Net", "rnn/output.0", "rms"))
    'output'
    >>> series_group(Series("Adam", "groups.0", "lr"))
    'groups'
    """
    if not series.module:
        return series.what.partition(".")[0]
    if _OUTPUT.match(series.what):
        return OUTPUT_GRAD if series.what.endswith(".grad") else OUTPUT
    for group, ending in ((PARAMETER_GRAD, ".grad"), (UPDATE, ".update")):
        if series.what.endswith(ending):
            return group
    return PARAMETER


def series_label(series: Series) -> str:
    """Return the name of a curve among those of its layer or of its run.

    >>> series_label(Series("Net", "conv1/weight.update", "ratio"))
    'weight'
    """
    if not series.module:
        return f"{series.model} {series.what}".strip()
    return series.what.removesuffix(".grad").removesuffix(".update")


def is_drawn(series: Series) -> bool:
    """Whether some chart shows a series."""
    return (series_group(series), series.measure) in _DRAWN
