"""See and change what happens inside a PyTorch model: activations and gradients at any layer.

The same verbs as on the command line, each one function. Names are imported when first used, so
that ``import hookscope`` alone does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.ablation.result import Ablation
    from hookscope.captures import Capture
    from hookscope.datasets.reading.features import Features
    from hookscope.errors import HookscopeError
    from hookscope.health.result import Health
    from hookscope.own_hooks.emission import emit
    from hookscope.sources.catalog import models
    from hookscope.verbs.ablate import ablate
    from hookscope.verbs.cam import cam
    from hookscope.verbs.capture import capture
    from hookscope.verbs.check import check
    from hookscope.verbs.diff import diff
    from hookscope.verbs.export import export
    from hookscope.verbs.extract import extract
    from hookscope.verbs.filters import filters
    from hookscope.verbs.gradcheck import gradcheck
    from hookscope.verbs.grads import grads
    from hookscope.verbs.load import load, load_model
    from hookscope.verbs.open import open
    from hookscope.verbs.plot import plot
    from hookscope.verbs.record import record
    from hookscope.verbs.report import Report, report
    from hookscope.verbs.step import step
    from hookscope.verbs.trace import trace
    from hookscope.verbs.tree import tree
    from hookscope.verbs.verify import verify
    from hookscope.wrapping import wrap

_VERBS = (
    *("ablate", "cam", "capture", "check", "diff", "export", "extract", "filters", "gradcheck"),
    *("grads", "load", "open", "plot", "record", "report", "step", "trace", "verify"),
)
_HOMES = {
    **{verb: f"hookscope.verbs.{verb}" for verb in _VERBS},
    "tree": "hookscope.verbs.tree",
    "load_model": "hookscope.verbs.load",
    "models": "hookscope.sources.catalog",
    "emit": "hookscope.own_hooks.emission",
    "wrap": "hookscope.wrapping",
    "Ablation": "hookscope.ablation.result",
    "Capture": "hookscope.captures",
    "Features": "hookscope.datasets.reading.features",
    "Health": "hookscope.health.result",
    "HookscopeError": "hookscope.errors",
    "Report": "hookscope.verbs.report",
}

__all__ = [
    "Ablation",
    "Capture",
    "Features",
    "Health",
    "HookscopeError",
    "Report",
    "__version__",
    "ablate",
    "cam",
    "capture",
    "check",
    "diff",
    "emit",
    "export",
    "extract",
    "filters",
    "gradcheck",
    "grads",
    "load",
    "load_model",
    "models",
    "open",
    "plot",
    "record",
    "report",
    "step",
    "trace",
    "tree",
    "verify",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
