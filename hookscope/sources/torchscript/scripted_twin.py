"""A live scripted module and its ordinary stand-in, with synchronised state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.files.signal_safety import uninterrupted
from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.module_builder import CPU, ModuleBuilder, ScriptedModule
from hookscope.sources.torchscript.runtime import own_name

_PLAIN = (bool, int, float, str, type(None), Tensor)


class ScriptedTwin:
    """The stand-in of a live scripted module, synchronised with it before and after each call.

    Parameters are the same tensors. Lists, dicts and objects are separate.
    """

    def __init__(self, live: torch.jit.ScriptModule) -> None:
        builder = ModuleBuilder(None)
        device = next((tensor.device for tensor in live.parameters()), CPU)
        self.live = live
        self.module = builder.build(private.script_object(live), device)
        self._states = [
            (live, module, {name: _get(module, name) for name in _shared(live, module, read)})
            for live, module, read in builder.built()
        ]

    def parts(self) -> Iterator[tuple[nn.Module, ScriptedModule]]:
        """Yield each submodule of the live module with its stand-in."""
        yield from _pairs(self.live, self.module)

    def calling(self, stand_in: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``stand_in`` with synchronisation before and after it runs."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.reconcile()
            try:
                return stand_in(*args, **kwargs)
            finally:
                self.reconcile()

        return call

    @uninterrupted
    def reconcile(self) -> None:
        """Synchronise what either side has changed; changes of the live module take precedence."""
        for live, module, last in self._states:
            for name, before in last.items():
                live_value, value = private.attribute(live, name), _get(module, name)
                if not _same(live_value, before):
                    if name in module._buffers:
                        module._buffers[name] = live_value
                    else:
                        module.__dict__[own_name(name)] = live_value
                elif not _same(value, before):
                    private.set_attribute(live, name, value)
                last[name] = _get(module, name)


def _shared(live: private.ScriptObject, module: ScriptedModule, read: list[str]) -> list[str]:
    """The names of the attributes that are synchronised."""
    attributes = module.__dict__
    plain = [name for name in read if isinstance(attributes.get(own_name(name), module), _PLAIN)]
    mode = ["training"] if private.has_attribute(live, "training") else []
    return list(dict.fromkeys([*mode, *module._buffers, *plain]))


def _get(module: ScriptedModule, name: str) -> Any:
    return module._buffers[name] if name in module._buffers else module.__dict__[own_name(name)]


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor) or isinstance(other, Tensor):
        return value is other
    return type(value) is type(other) and (value == other or value != value)  # NaN equals NaN


def _pairs(live: nn.Module, module: nn.Module) -> Iterator[tuple[nn.Module, ScriptedModule]]:
    assert isinstance(module, ScriptedModule)
    yield live, module
    live_children = dict(live._modules.items())  # scripted modules have another kind of dict
    for name, child in module._modules.items():
        live_child = live_children.get(name)  # None for an operator of a frozen graph
        if live_child is not None and child is not None:
            yield from _pairs(live_child, child)
