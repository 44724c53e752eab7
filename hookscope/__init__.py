"""Record and edit activations and gradients at any layer of a PyTorch model.

Each command of the command line is one function here. Names are imported when they are first used,
so that ``import hookscope`` alone does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.commands.ablate import ablate
    from hookscope.commands.attribute import attribute
    from hookscope.commands.cam import cam
    from hookscope.commands.capture import capture
    from hookscope.commands.check import check
    from hookscope.commands.diff import diff
    from hookscope.commands.export import export
    from hookscope.commands.extract import extract
    from hookscope.commands.filters import filters
    from hookscope.commands.gradcheck import gradcheck
    from hookscope.commands.grads import grads
    from hookscope.commands.lens import lens
    from hookscope.commands.load import load
    from hookscope.commands.load_model import load_model
    from hookscope.commands.plot import plot
    from hookscope.commands.probe import probe
    from hookscope.commands.record import record
    from hookscope.commands.report import report
    from hookscope.commands.similar import similar
    from hookscope.commands.step import step
    from hookscope.commands.sweep import sweep
    from hookscope.commands.top import top
    from hookscope.commands.trace import trace
    from hookscope.commands.tree import tree
    from hookscope.commands.verify import verify
    from hookscope.commands.watch import watch
    from hookscope.errors import HookscopeError
    from hookscope.hooks.capture import Capture
    from hookscope.hooks.user_hooks import emit
    from hookscope.hooks.wrap import wrap
    from hookscope.results.ablation import Ablation
    from hookscope.results.attribution import Attribution
    from hookscope.results.health import Health
    from hookscope.results.lens import Lens
    from hookscope.results.report import Report
    from hookscope.results.sweep import Sweep
    from hookscope.specs.catalog import models
    from hookscope.stores.features.features import Features

_FUNCTIONS = (  # each in the file of its name in hookscope/commands/
    *("ablate", "attribute", "cam", "capture", "check", "diff", "export", "extract", "filters"),
    *("gradcheck", "grads", "lens", "load", "load_model", "plot", "probe", "record", "report"),
    *("similar", "step", "sweep", "top", "trace", "tree", "verify", "watch"),
)
_MODULES = {
    **{name: f"hookscope.commands.{name}" for name in _FUNCTIONS},
    "models": "hookscope.specs.catalog",
    "emit": "hookscope.hooks.user_hooks",
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
