"""Models that refuse hooks while they are alive: scripted, traced, exported, or with such a part.

They are opened as files of their kind are. The ordinary module shares its parameters with a
scripted one, so that gradients reach the model that was given.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import nn

from hookscope.errors import RequestError
from hookscope.sources.torchscript.private import is_scripted
from hookscope.tensors.interrupts import signal_safe_contextmanager

_STAND_IN = "_hookscope_stand_in"  # in a live model, while something is recorded of it


def _is_exported(model: object) -> bool:
    """Whether ``model`` is an ``ExportedProgram``; one can only be where its module is loaded."""
    home = sys.modules.get("torch.export.exported_program")
    return home is not None and isinstance(model, home.ExportedProgram)


def check_model(model: object, *others: type) -> None:
    """Raise RequestError unless ``model`` is one, or of one of the other types."""
    if not isinstance(model, (nn.Module, *others)) and not _is_exported(model):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise RequestError(
            f"A model is needed, and {what} is none.", "Give an nn.Module, built already."
        )


def as_hookable(model: nn.Module | torch.export.ExportedProgram) -> nn.Module:
    """Return ``model`` as one that takes hooks everywhere; itself where it does already.

    An ordinary model with scripted parts is copied as far as needed: the modules above those parts,
    with the same parameters and buffers.
    """
    if not isinstance(model, nn.Module):
        from hookscope.sources.exported.exported_source import to_module as adopt_program

        return adopt_program(model)
    return _open(model, {})


def _open(model: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    if model in known:
        return known[model]
    known[model] = model
    if is_scripted(model):
        from hookscope.sources.torchscript.scripted_twin import ScriptedTwin

        known[model] = ScriptedTwin(cast("torch.jit.ScriptModule", model)).module
        return known[model]
    children = {name: child and _open(child, known) for name, child in model._modules.items()}
    if any(child is not model._modules[name] for name, child in children.items()):
        known[model] = copy.copy(model)
        known[model]._modules = children
    return known[model]


@signal_safe_contextmanager
def hookable(model: nn.Module | torch.export.ExportedProgram) -> Iterator[nn.Module]:
    """Give a module that takes hooks everywhere, and that runs where ``model`` is called meanwhile.

    A scripted model, or part of one, is called as ever: its methods are those of the stand-in
    until the block ends. An exported program is called through what its ``module()`` returns.
    """
    with ExitStack() as stack:
        if not isinstance(model, nn.Module):
            made = vars(model).get(_STAND_IN) or as_hookable(model)
            _lend(stack, vars(model), _STAND_IN, made)
            _lend(stack, vars(model), "module", lambda check_guards=True: made)
            yield made
        elif is_scripted(model):
            yield _stand_in(stack, model)
        else:
            for parent in [one for one in model.modules() if not is_scripted(one)]:
                for name, child in parent._modules.items():
                    if child is not None and is_scripted(child):
                        _lend(stack, parent._modules, name, _stand_in(stack, child))
            yield model


def _stand_in(stack: ExitStack, live: nn.Module) -> nn.Module:
    """Let the stand-in of a scripted module run in its place; one that does already goes on."""
    twin = vars(live).get(_STAND_IN)
    if twin is None:
        from hookscope.sources.torchscript.scripted_twin import ScriptedTwin

        twin = ScriptedTwin(cast("torch.jit.ScriptModule", live))
        stack.callback(twin.reconcile)
        _lend(stack, vars(live), _STAND_IN, twin)
        for part, made in twin.parts():
            hooked = made._forward_pre_hooks or made._forward_hooks
            if hooked:  # scripted ones, which a call of the part runs and its forward does not
                _lend(stack, vars(part), "_call_impl", twin.calling(made.__call__))
            inner = made.forward if hooked else made.__call__
            _lend(stack, vars(part), "forward", twin.calling(inner))
            for name, method in made._hookscope_methods_by_name().items():
                _lend(stack, vars(part), name, twin.calling(method))
        twin.module.__dict__["forward"] = twin.calling(twin.module.forward)
    return twin.module


def _lend(stack: ExitStack, members: dict[str, Any], name: str, value: Any) -> None:
    """Put ``value`` in the place of an attribute until the block ends."""
    if name in members:
        stack.callback(members.__setitem__, name, members[name])
    else:
        stack.callback(members.__delitem__, name)
    members[name] = value
