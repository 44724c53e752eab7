"""Wrapper modules, such as DataParallel, and modules changed in place, as by accelerate."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from hookscope.errors import RequestError, cause

# Class names: most of these classes are in packages that take a second to import.
_INNER_NAMES = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def inner_name(module: nn.Module) -> str:
    """Return the attribute of a wrapper that holds the wrapped module; empty for other modules."""
    for cls in type(module).__mro__:
        if cls.__name__ in _INNER_NAMES and cls.__module__.startswith("torch."):
            return _INNER_NAMES[cls.__name__]
    return ""


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside all wrappers."""
    while name := inner_name(module):
        module = module.get_submodule(name)
    return module


def copy_model(module: nn.Module, purpose: str, repair: str) -> nn.Module:
    """Return a deep copy of ``module``."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # any class may fail; the old weight_norm and pruning do
        why = cause(error).partition(". ")[0]
        raise RequestError(f"The model cannot be copied {purpose}: {why}.", repair) from error


def twin_of(module: nn.Module) -> nn.Module | None:
    """Return a copy with the same parameters; None if the model cannot be copied."""
    parameters = {id(one): one for one in module.parameters()}
    try:
        return copy.deepcopy(module, parameters)
    except Exception:  # any class may fail
        return None


def type_names(module: nn.Module) -> tuple[str, ...]:
    """Return the name of a module's class, and of its class before it was parametrized."""
    own = class_name(module)
    if not parametrize.is_parametrized(module):
        return (own,)
    return own, parametrize.type_before_parametrizations(module).__name__


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class; ``Net`` for ``FSDPNet``, which ``fully_shard`` makes."""
    own = type(module)
    name = own.__name__
    is_sharded = name.startswith("FSDP") and any(x.__name__ == "FSDPModule" for x in own.__bases__)
    return name.removeprefix("FSDP") if is_sharded else name


def dispatch_device(modules: Iterable[nn.Module]) -> torch.device | None:
    """Return the input device of a model that accelerate has dispatched; None for any other."""
    for _, hook in _accelerate_hooks(modules):
        device = getattr(hook, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return None


def release_offloaded_weights(modules: Iterable[nn.Module]) -> None:
    """Release the offloaded weights that accelerate loaded for calls that did not end."""
    for module, hook in _accelerate_hooks(modules):
        recurse = getattr(hook, "place_submodules", False)
        own = dict(nn.Module.named_parameters(module, recurse=recurse)).values()
        if getattr(hook, "offload", False) and not all(weight.is_meta for weight in own):
            # Else accelerate mistakes them for other weights at the same address.
            hook.post_forward(module, None)


def _accelerate_hooks(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, Any]]:
    for module in modules:
        hook = module.__dict__.get("_hf_hook")  # getattr is slow where there is no such attribute
        waiting = [] if hook is None else [hook]
        while waiting:
            yield module, (hook := waiting.pop(0))
            waiting += getattr(hook, "hooks", ())  # of a SequentialHook, which may hold another one
