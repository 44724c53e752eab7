"""Ends a forward pass once all modules that matter have returned."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

from torch import nn

from hookscope.errors import RequestError
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.sources.wrappers import release_offloaded_weights


class _StopForward(BaseException):
    """Ends a forward pass. Not an Exception, because a model may catch exceptions."""


class EarlyStop(CallSubscriber):
    """Ends each pass of a model within :meth:`passing` once some calls have returned.

    Enter it after the recorder whose calls it counts: subscribers act in order.
    """

    def __init__(self, model: nn.Module, calls: Mapping[Layer, int]) -> None:
        self._model, self._layers = model, tuple(calls)
        self._numbers = {layer.module: number for layer, number in calls.items()}
        self._missing: set[nn.Module] = set()
        self._thread = 0
        self.ended_after: Layer | None = None

    @signal_safe_contextmanager
    def passing(self, calls: CallRegistry | None = None) -> Iterator[None]:
        """Let the pass in the block end early. ``calls`` numbers its calls; by default from 1."""
        calls = CallRegistry(self._model) if calls is None else calls
        self._missing = set(self._numbers)
        self._thread = threading.get_ident()
        self.ended_after = None
        with calls.subscribed(self, self._layers), suppress(_StopForward):
            yield
            if self.ended_after is not None:
                raise RequestError(
                    "The model catches the exception that ends the run after"
                    f" {self.ended_after.title}, so what it computes is not its output.",
                    "Use --no-stop.",
                )
            return
        release_offloaded_weights(self._model.modules())

    def after_call(self, call: ModuleCall, state: None) -> None:
        """End the pass if this was the last call that was missing.

        A call on a thread that the model has started ends nothing: the model waits for its result.
        """
        module = call.layer.module
        if call.number == self._numbers[module] and not call.failed:
            self._missing.discard(module)
            if not self._missing and threading.get_ident() == self._thread:
                self.ended_after = call.layer
                raise _StopForward
