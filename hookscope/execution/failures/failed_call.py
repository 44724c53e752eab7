"""Noting every call of every layer, with shapes and without tensors."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from hookscope.execution.failures.expectations import mismatches
from hookscope.execution.failures.frames import (
    arguments_at,
    describe_each,
    describe_tensors,
    short_path,
    source_line,
    user_line,
    variables_at,
)
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.registry import HookSet
from hookscope.results.failure import ForwardFailure, LayerCall, TensorInfo
from hookscope.specs.record_kinds import OUTPUT
from hookscope.tensors.interrupts import SignalSafeContext


@dataclass
class _Open:
    """A call that is under way; ``handled`` is the exception that was being handled before it."""

    call: LayerCall
    handled: BaseException | None


class CallObserver(SignalSafeContext["CallObserver"]):
    """Notes the calls of all layers of a model while the ``with`` block runs.

    Attributes:
        ran: the calls that returned, in that order.
        failed: the innermost call that an exception ended; None if there was none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.ran: list[LayerCall] = []
        self.failed: LayerCall | None = None
        self._layers = layers_of(model)
        self._hooks = HookSet(model)
        self._counts: dict[str, int] = {}
        self._open: list[_Open] = []

    def _enter(self) -> CallObserver:
        with self._hooks.attaching() as hooks:
            for layer in self._layers:
                hooks.before(layer.module, partial(self._before, layer))
                hooks.after(layer.module, self._after, always=True)
        return self

    def _leave(self, *error: object) -> None:
        self._hooks.__exit__(None, None, None)

    def _before(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any) -> None:
        number = self._counts[layer.name] = self._counts.get(layer.name, 0) + 1
        call = layer_call(layer, number, describe_tensors(module, (args, kwargs)))
        self._open.append(_Open(call, sys.exc_info()[1]))

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._open:
            return
        begun = self._open.pop()
        if sys.exc_info()[1] is not begun.handled:  # PyTorch calls this hook for a failure too
            self.failed = self.failed or begun.call
            return
        outputs = describe_each(output)
        self.failed = None  # the model caught what had failed before
        self.ran.append(
            LayerCall(
                begun.call.layer,
                begun.call.type,
                begun.call.call,
                begun.call.arguments,
                begun.call.inputs,
                outputs,
            )
        )


def layer_call(layer: Layer, number: int, inputs: Any = (), outputs: Any = ()) -> LayerCall:
    """Return the call ``number`` of ``layer`` as plain data."""
    arguments = ""
    with suppress(Exception):  # a user's own extra_repr
        arguments = layer.module.extra_repr()
    return LayerCall(layer.name, layer.type, number, arguments, tuple(inputs), tuple(outputs))


def describe_failure(
    layer: Layer, error: BaseException, capture: Capture | None, known: str
) -> ForwardFailure:
    """Return what is known of a failure without another run.

    Args:
        layer: the innermost one that was running.
        error: what was raised.
        capture: what had been recorded; its calls are those that are known to have run.
        known: what is already known to be wrong with the input.
    """
    call = arguments_at(layer.module, error.__traceback__)
    inputs = describe_tensors(layer.module, call) if call else ()
    wrong = mismatches(layer.module, call, str(error))
    failure = ForwardFailure(
        failed=layer_call(layer, 0, inputs),
        ran=_recorded_calls(capture),
        expected=known or " ".join(one.text for one in wrong),
    )
    place = user_line(error.__traceback__)
    if place is None:
        return failure
    frame, line = place
    file = frame.f_code.co_filename
    return ForwardFailure(
        failure.failed,
        failure.ran,
        expected=failure.expected,
        variables=variables_at(frame, line),
        file=short_path(file),
        line=line,
        function=frame.f_code.co_name,
        source=source_line(file, line),
    )


def _recorded_calls(capture: Capture | None) -> tuple[LayerCall, ...]:
    """The calls of which an output was recorded, in the order in which they returned."""
    outputs: dict[tuple[str, str, int], list[TensorInfo]] = {}
    for record in capture.records if capture is not None else ():
        if record.kind == OUTPUT:
            path = record.what.partition(".")[2]
            info = TensorInfo(path, record.shape, record.dtype, record.device)
            outputs.setdefault((record.module, record.type, record.call), []).append(info)
    return tuple(LayerCall(*call, outputs=tuple(infos)) for call, infos in outputs.items())
