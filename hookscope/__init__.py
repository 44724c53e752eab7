"""Record and edit activations and gradients at any layer of a PyTorch model.

Each command of the command line is one function here. Names are imported when they are first used,
so that ``import hookscope`` alone does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hookscope.specs.commands import FUNCTIONS
from hookscope.version import __version__ as __version__

# Editors and type checkers read the names and their types in __init__.pyi.
_MODULES = {
    **{name: f"hookscope.commands.{name}" for name in FUNCTIONS},
    "models": "hookscope.commands.models",
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

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Add the magic ``%%hookscope`` to a notebook; ``%load_ext hookscope`` calls this."""
    from hookscope.commands.notebook import add_magic

    add_magic(shell)
