"""Ending a forward pass as soon as the last layer that is wanted has run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch import nn

from hookscope.hooks import HookSet
from hookscope.modules import submodule


class _Enough(BaseException):
    """All that is wanted has been recorded. No Exception: a model may catch those of its own."""


class Stopper:
    """Ends each pass of ``model`` within :meth:`passing` after call ``number`` of a module.

    Its hook is to be attached after the recorder's: hooks of one module run in order.
    """

    def __init__(self, model: nn.Module, name: str, number: int) -> None:
        self._hooks = HookSet(model)
        found = submodule(model, name)
        assert found is not None, "a layer that has just been recorded"
        self._module = found
        self._number = number
        self._calls = 0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let the pass in the block end early."""
        self._calls = 0
        with self._hooks as hooks:
            hooks.after(self._module, self._after)
            with suppress(_Enough):
                yield

    def _after(self, *_: Any) -> None:
        self._calls += 1
        if self._calls == self._number:
            raise _Enough
