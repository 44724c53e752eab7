"""A live scripted module and the ordinary one that stands in for it, kept in one state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.module_builder import CPU, ModuleBuilder, ScriptedModule
from hookscope.sources.torchscript.runtime import own_name
from hookscope.tensors.interrupts import uninterrupted

_PLAIN = (bool, int, float, str, type(None), Tensor)


class ScriptedTwin:
    """The stand-in for a live module, and what keeps the two alike.

    Parameters are the very same tensors. The mode, the buffers, and attributes that are numbers,
    texts or tensors are carried over around each call, from whichever side has changed them; lists,
    dicts and objects are each side's own.

    Args:
        live: a scripted or traced module.
    """

    def __init__(self, live: torch.jit.ScriptModule) -> None:
        builder = ModuleBuilder(None)
        device = next((tensor.device for tensor in live.parameters()), CPU)
        self.live = live
        self.module = builder.build(private.script_object(live), device)
        self._states = [
            (given, made, {name: _get(made, name) for name in _shared(given, made, read)})
            for given, made, read in builder.built()
        ]

    def parts(self) -> Iterator[tuple[nn.Module, ScriptedModule]]:
        """Each module of the live one with what stands in for it."""
        yield from _pairs(self.live, self.module)

    def calling(self, stand_in: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``stand_in`` with the states brought together before and after it runs."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.reconcile()
            try:
                return stand_in(*args, **kwargs)
            finally:
                self.reconcile()

        return call

    @uninterrupted
    def reconcile(self) -> None:
        """Carry over what either side has changed since the last time; the live one comes first."""
        for given, made, last in self._states:
            for name, before in last.items():
                theirs, mine = private.attribute(given, name), _get(made, name)
                if not _same(theirs, before):
                    held: Any = made._buffers if name in made._buffers else made.__dict__
                    held[name if name in made._buffers else own_name(name)] = theirs
                elif not _same(mine, before):
                    private.set_attribute(given, name, mine)
                last[name] = _get(made, name)


def _shared(given: private.ScriptObject, made: ScriptedModule, read: list[str]) -> list[str]:
    """The names of what is carried over between a module and its stand-in."""
    plain = [name for name in read if isinstance(made.__dict__.get(own_name(name), made), _PLAIN)]
    mode = ["training"] if private.has_attribute(given, "training") else []
    return list(dict.fromkeys([*mode, *made._buffers, *plain]))


def _get(made: ScriptedModule, name: str) -> Any:
    return made._buffers[name] if name in made._buffers else made.__dict__[own_name(name)]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    return type(one) is type(other) and (one == other or one != one)  # a NaN is still that NaN


def _pairs(live: nn.Module, made: nn.Module) -> Iterator[tuple[nn.Module, ScriptedModule]]:
    assert isinstance(made, ScriptedModule)
    yield live, made
    children = dict(live._modules.items())  # torch's own kind of dict for scripted modules
    for name, child in made._modules.items():
        below = children.get(name)  # an operator of a frozen graph has no partner
        if below is not None and child is not None:
            yield from _pairs(below, child)
