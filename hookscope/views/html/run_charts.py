"""Which curves and pictures the page of a run has, and which series belong to each."""

from __future__ import annotations

import re

from hookscope.stores.runs.series import Series
from hookscope.views.html.run_page import RunChart, RunWaterfall

OUTPUT, OUTPUT_GRAD = "output", "output.grad"
PARAMETER, PARAMETER_GRAD, UPDATE = "parameter", "parameter.grad", "parameter.update"
RATIO_AIM = 1e-3  # what an update over its weight is compared with

_OUTPUT = re.compile(r"output(\.|$)")

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
