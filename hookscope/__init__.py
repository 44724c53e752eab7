"""See and change what happens inside a PyTorch model: activations and gradients at any layer.

The same verbs as on the command line, each one function. Names are imported when first used, so
that ``import hookscope`` alone does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.api import capture, grads, load, load_model, record, trace, tree
    from hookscope.emission import emit
    from hookscope.errors import HookscopeError
    from hookscope.records import Capture
    from hookscope.sources.catalog import models
    from hookscope.wrapping import wrap

_HOMES = {
    **dict.fromkeys(("capture", "grads", "load", "load_model"), "hookscope.api"),
    **dict.fromkeys(("record", "trace", "tree"), "hookscope.api"),
    "models": "hookscope.sources.catalog",
    "emit": "hookscope.emission",
    "wrap": "hookscope.wrapping",
    "Capture": "hookscope.records",
    "HookscopeError": "hookscope.errors",
}

__all__ = [
    "Capture",
    "HookscopeError",
    "__version__",
    "capture",
    "emit",
    "grads",
    "load",
    "load_model",
    "models",
    "record",
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
