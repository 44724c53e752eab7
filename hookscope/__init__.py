"""See and change what happens inside a PyTorch model: activations and gradients at any layer.

The same verbs as on the command line, each one function. Names are imported when first used, so
that ``import hookscope`` alone does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.ablation import Ablation
    from hookscope.api import (
        ablate,
        capture,
        gradcheck,
        grads,
        load,
        load_model,
        record,
        step,
        trace,
        tree,
    )
    from hookscope.errors import HookscopeError
    from hookscope.own_hooks.emission import emit
    from hookscope.records import Capture
    from hookscope.sources.catalog import models
    from hookscope.wrapping import wrap

_VERBS = (
    *("ablate", "capture", "gradcheck", "grads", "load", "load_model", "record", "step"),
    *("trace", "tree"),
)
_HOMES = {
    **dict.fromkeys(_VERBS, "hookscope.api"),
    "models": "hookscope.sources.catalog",
    "emit": "hookscope.own_hooks.emission",
    "wrap": "hookscope.wrapping",
    "Ablation": "hookscope.ablation",
    "Capture": "hookscope.records",
    "HookscopeError": "hookscope.errors",
}

__all__ = [
    "Ablation",
    "Capture",
    "HookscopeError",
    "__version__",
    "ablate",
    "capture",
    "emit",
    "gradcheck",
    "grads",
    "load",
    "load_model",
    "models",
    "record",
    "step",
    "trace",
    "tree",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
