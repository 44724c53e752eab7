"""Ending a forward pass as soon as the last layer that is wanted has run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch import nn

from hookscope.hooks.layers import submodule
from hookscope.hooks.registry import HookSet
from hookscope.sources.wrappers import send_back
from hookscope.tensors.interrupts import restoring


class _Enough(BaseException):
    """All that is wanted has been recorded. No Exception: a model may catch those of its own."""


class Stopper:
    """Ends each pass of ``model`` within :meth:`passing` after call ``number`` of a module.

    Its hook is to be attached after the recorder's: hooks of one module run in order.
    """

    def __init__(self, model: nn.Module, name: str, number: int) -> None:
        module = submodule(model, name)
        assert module is not None
        self._model, self._module = model, module
        self._hooks = HookSet(model)
        self._number = number
        self._calls = 0

    @restoring
    def passing(self) -> Iterator[None]:
        """Let the pass in the block end early."""
        self._calls = 0
        with self._hooks as hooks:
            hooks.after(self._module, self._after)
            with suppress(_Enough):
                yield
                return
        send_back(self._model.modules())

    def _after(self, *_: Any) -> None:
        self._calls += 1
        if self._calls == self._number:
            raise _Enough
