"""Modules that stand around another one and run it, and modules that were changed in place.

What a wrapper holds bears the wrapper's own name: layers are called the same with and without it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from hookscope.errors import RequestError, cause

# By name, since most of these classes lie in packages that take a second to import.
_HOLDS = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def inner_name(module: nn.Module) -> str:
    """Return under which name a wrapper holds what it wraps; empty for any other module.

    >>> inner_name(nn.DataParallel(nn.Linear(2, 2))), inner_name(nn.Linear(2, 2))
    ('module', '')
    """
    ours = (kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch."))
    return next((_HOLDS[name] for name in ours if name in _HOLDS), "")


def unwrapped(module: nn.Module) -> nn.Module:
    """Return what stands inside all wrappers."""
    while name := inner_name(module):
        module = module.get_submodule(name)
    return module


def copy_model(module: nn.Module, purpose: str, repair: str) -> nn.Module:
    """Return a copy of ``module`` that shares nothing with it.

    Args:
        module: a model that is not ours to change.
        purpose: what the copy is for, as in ``The model cannot be copied to be moved``.
        repair: what to do where there can be none.

    Raises:
        RequestError: it cannot be copied.
    """
    try:
        return copy.deepcopy(module)
    except Exception as error:  # any class may refuse; the old weight_norm and pruning do
        why = cause(error).partition(". ")[0]
        raise RequestError(f"The model cannot be copied {purpose}: {why}.", repair) from error


def type_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of a module's class: its own, and the one it had before it was parametrized.

    >>> type_names(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    ('ParametrizedLinear', 'Linear')
    """
    own = type(module).__name__
    if not parametrize.is_parametrized(module):
        return (own,)
    return own, parametrize.type_before_parametrizations(module).__name__


def dispatch_device(modules: Iterable[nn.Module]) -> torch.device | None:
    """Return where a model of these modules takes its input if accelerate brings its weights.

    None for a model that holds its weights itself.
    """
    for module in modules:
        for hook in _dispatchers(getattr(module, "_hf_hook", None)):
            place = getattr(hook, "execution_device", None)
            if place is not None:
                return torch.device(place)
    return None


def release_offloaded_weights(modules: Iterable[nn.Module]) -> None:
    """Let go of the weights that accelerate brought for modules whose calls did not come to an end.

    They stay otherwise, and are taken for other weights that come to lie at the same address.
    """
    for module in modules:
        for hook in _dispatchers(getattr(module, "_hf_hook", None)):
            inside = getattr(hook, "place_submodules", False)
            own = module.parameters(recurse=inside)
            if getattr(hook, "offload", False) and not all(weight.is_meta for weight in own):
                hook.post_forward(module, None)


def _dispatchers(hook: Any) -> Iterator[Any]:
    yield hook
    for part in getattr(hook, "hooks", ()):  # several in a row
        yield from _dispatchers(part)
