"""Live models that do not support hooks (scripted, traced, exported) become ordinary modules.

The module shares its parameters with a scripted one, so gradients reach the user's model.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, cast

import torch
from torch import nn

from hookscope.errors import RequestError
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.sources.structure import structure_of
from hookscope.sources.torchscript.private import is_scripted

_STAND_IN = "_hookscope_stand_in"  # attribute of a live model while it is recorded


def check_model(model: object, *others: type) -> None:
    """Raise RequestError unless ``model`` is a model, or of one of the other types."""
    # Without an import of torch.export: before it, no model is an exported program.
    program = getattr(sys.modules.get("torch.export.exported_program"), "ExportedProgram", ())
    if not isinstance(model, (nn.Module, *others, program)):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise RequestError(f"Expected a model, but got {what}.", "Pass an instance of nn.Module.")


def as_hookable(model: nn.Module | torch.export.ExportedProgram) -> nn.Module:
    """Return ``model`` as a module that supports hooks everywhere; unchanged if it does already."""
    if not isinstance(model, nn.Module):
        from hookscope.sources.exported.exported_source import to_module

        return to_module(model)
    return _replace_scripted(model, {}) if structure_of(model).has_scripted else model


def _replace_scripted(model: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    if model in known:
        return known[model]
    known[model] = model
    if is_scripted(model):
        from hookscope.sources.torchscript.scripted_twin import ScriptedTwin

        known[model] = ScriptedTwin(cast("torch.jit.ScriptModule", model)).module
        return known[model]
    children = {
        name: child and _replace_scripted(child, known) for name, child in model._modules.items()
    }
    if any(child is not model._modules[name] for name, child in children.items()):
        known[model] = copy.copy(model)
        known[model]._modules = children
    return known[model]


def hookable(
    model: nn.Module | torch.export.ExportedProgram,
) -> AbstractContextManager[nn.Module]:
    """Yield a module that supports hooks everywhere, and that runs when ``model`` is called."""
    supports_hooks = isinstance(model, nn.Module) and not structure_of(model).has_scripted
    return nullcontext(cast("nn.Module", model)) if supports_hooks else _replaced(model)


@signal_safe_contextmanager
def _replaced(model: nn.Module | torch.export.ExportedProgram) -> Iterator[nn.Module]:
    """Let stand-ins run in place of scripted modules and exported programs."""
    with ExitStack() as stack:
        if not isinstance(model, nn.Module):
            module = vars(model).get(_STAND_IN) or as_hookable(model)
            _substitute(stack, vars(model), _STAND_IN, module)
            _substitute(stack, vars(model), "module", lambda check_guards=True: module)
            yield module
        elif is_scripted(model):
            yield _stand_in(stack, model)
        else:
            for parent in [m for m in model.modules() if not is_scripted(m)]:
                for name, child in parent._modules.items():
                    if child is not None and is_scripted(child):
                        _substitute(stack, parent._modules, name, _stand_in(stack, child))
            yield model


def _stand_in(stack: ExitStack, live: nn.Module) -> nn.Module:
    """Let the stand-in of a scripted module (or of an outer recording) run in its place."""
    twin = vars(live).get(_STAND_IN)
    if twin is None:
        from hookscope.sources.torchscript.scripted_twin import ScriptedTwin

        twin = ScriptedTwin(cast("torch.jit.ScriptModule", live))
        stack.callback(twin.reconcile)
        _substitute(stack, vars(live), _STAND_IN, twin)
        for part, module in twin.parts():
            hooked = module._forward_pre_hooks or module._forward_hooks
            if hooked:  # scripted hooks, which run in a call but not in ``forward``
                _substitute(stack, vars(part), "_call_impl", twin.calling(module.__call__))
            inner = module.forward if hooked else module.__call__
            _substitute(stack, vars(part), "forward", twin.calling(inner))
            for name, method in module._hookscope_methods_by_name().items():
                _substitute(stack, vars(part), name, twin.calling(method))
        twin.module.__dict__["forward"] = twin.calling(twin.module.forward)
    return twin.module


def _substitute(stack: ExitStack, members: dict[str, Any], name: str, value: Any) -> None:
    """Replace an attribute by ``value`` until the block ends."""
    if name in members:
        stack.callback(members.__setitem__, name, members[name])
    else:
        stack.callback(members.__delitem__, name)
    members[name] = value
