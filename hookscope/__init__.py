"""Record and edit activations and gradients at any layer of a PyTorch model.

Each command of the command line is one function here. Names are imported when they are first used,
so that ``import hookscope`` alone does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.api.ablate import ablate
    from hookscope.api.attribute import attribute
    from hookscope.api.cam import cam
    from hookscope.api.capture import capture
    from hookscope.api.check import check
    from hookscope.api.diff import diff
    from hookscope.api.export import export
    from hookscope.api.extract import extract
    from hookscope.api.filters import filters
    from hookscope.api.gradcheck import gradcheck
    from hookscope.api.grads import grads
    from hookscope.api.lens import lens
    from hookscope.api.load import load
    from hookscope.api.load_model import load_model
    from hookscope.api.plot import plot
    from hookscope.api.probe import probe
    from hookscope.api.record import record
    from hookscope.api.report import report
    from hookscope.api.similar import similar
    from hookscope.api.step import step
    from hookscope.api.sweep import sweep
    from hookscope.api.top import top
    from hookscope.api.trace import trace
    from hookscope.api.tree import tree
    from hookscope.api.verify import verify
    from hookscope.api.watch import watch
    from hookscope.errors import HookscopeError
    from hookscope.hooks.capture import Capture
    from hookscope.hooks.hook_binding import emit
    from hookscope.hooks.wrap import wrap
    from hookscope.results.ablation import Ablation
    from hookscope.results.attribution import Attribution
    from hookscope.results.health import Health
    from hookscope.results.lens import Lens
    from hookscope.results.report import Report
    from hookscope.results.sweep import Sweep
    from hookscope.specs.catalog import models
    from hookscope.stores.features.features import Features

_FUNCTIONS = (  # each in the file of its name in hookscope/api/
    *("ablate", "attribute", "cam", "capture", "check", "diff", "export", "extract", "filters"),
    *("gradcheck", "grads", "lens", "load", "load_model", "plot", "probe", "record", "report"),
    *("similar", "step", "sweep", "top", "trace", "tree", "verify", "watch"),
)
_MODULES = {
    **{name: f"hookscope.api.{name}" for name in _FUNCTIONS},
    "models": "hookscope.specs.catalog",
    "emit": "hookscope.hooks.hook_binding",
    "wrap": "hookscope.hooks.wrap",
    "Ablation": "hookscope.results.ablation",
    "Attribution": "hookscope.results.attribution",
    "Capture": "hookscope.hooks.capture",
    "Features": "hookscope.stores.features.features",
    "Health": "hookscope.results.health",
    "Lens": "hookscope.results.lens",
    "HookscopeError": "hookscope.errors",
    "Report": "hookscope.results.report",
    "Sweep": "hookscope.results.sweep",
}

__all__ = [
    "Ablation",
    "Attribution",
    "Capture",
    "Features",
    "Health",
    "HookscopeError",
    "Lens",
    "Report",
    "Sweep",
    "__version__",
    "ablate",
    "attribute",
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
    "lens",
    "load",
    "load_model",
    "models",
    "plot",
    "probe",
    "record",
    "report",
    "similar",
    "step",
    "sweep",
    "top",
    "trace",
    "tree",
    "verify",
    "watch",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
