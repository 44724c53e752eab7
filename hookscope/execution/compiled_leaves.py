"""Modules that are compiled one by one, so that hooks still run around each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EnvironmentFault
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.sources.structure import modules_in

_FORWARD = "forward"
# Else compiled dropout draws numbers of its own, which are no more right or wrong than the others.
_OPTIONS: dict[str, Any] = {"fallback_random": True}


class CompiledLeaves:
    """The modules of a model that have no others in them, each with its ``forward`` compiled.

    ``module.compile()`` would compile the hooks of a module too, and hooks of hookscope run in
    no compiled code. They stay outside of ``forward``.
    """

    def __init__(self, model: nn.Module) -> None:
        leaves = [module for module in modules_in(model) if not module._modules]
        self._forwards = {module: _compiled(module.forward) for module in leaves}

    @signal_safe_contextmanager
    def in_place(self) -> Iterator[None]:
        """Let calls of the modules run compiled code within the block."""
        before = {module: vars(module).get(_FORWARD) for module in self._forwards}
        try:
            for module, forward in self._forwards.items():
                vars(module)[_FORWARD] = forward
            yield
        finally:
            for module, own in before.items():
                if own is None:
                    vars(module).pop(_FORWARD, None)
                else:
                    vars(module)[_FORWARD] = own


def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that calls ``forward``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    # PyTorch counts the variants of each code object, compiles the second one for any shape, and
    # after eight runs the code uncompiled. With a code object for each module, all are compiled.
    call.__code__ = call.__code__.replace()
    compiled: Callable[..., Any] = torch.compile(wraps(forward)(call), options=_OPTIONS)
    return compiled


def check_compiler(device: torch.device) -> None:
    """Raise EnvironmentFault unless ``torch.compile`` works on this device."""

    def probe(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() else x

    reason = "it is switched off, as TORCH_COMPILE_DISABLE=1 does"
    try:
        if torch.compile(probe)(torch.zeros(1, device=device)).item():
            return
    except Exception as error:  # that of a compiler, or of a release without one for this Python
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
    raise EnvironmentFault(
        f"torch.compile does not work here: {reason.rstrip('.')}.",
        "It needs a C++ compiler such as g++ on the CPU, and Triton on a GPU.",
    )
