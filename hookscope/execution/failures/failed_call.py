"""The calls of the layers of a model, as shapes without tensors, and the call that failed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
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
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.results.failure import ForwardFailure, LayerCall, TensorInfo
from hookscope.specs.tensor_key import OUTPUT


class CallObserver(CallSubscriber, SignalSafeContext["CallObserver"]):
    """Records the calls of all layers of a model while the ``with`` block runs."""

    def __init__(self, model: nn.Module) -> None:
        self.ran: list[LayerCall] = []
        self.failed: LayerCall | None = None
        self._layers = layers_of(model)
        self._calls = CallRegistry(model)

    def _enter(self) -> CallObserver:
        self._calls.subscribe(self, self._layers)
        return self

    def _leave(self, *error: object) -> None:
        self._calls.unsubscribe(self)

    def before_call(self, call: ModuleCall) -> LayerCall:
        """Note the inputs of a call."""
        inputs = describe_tensors(call.module, (call.args, call.kwargs))
        return layer_call(call.layer, call.number, inputs)

    def after_call(self, call: ModuleCall, begun: LayerCall) -> None:
        """Note the outputs of a call, or that it failed."""
        if call.failed:
            self.failed = self.failed or begun
            return
        self.failed = None  # the model caught what had failed before
        self.ran.append(replace(begun, outputs=describe_each(call.output)))


def layer_call(layer: Layer, number: int, inputs: Any = (), outputs: Any = ()) -> LayerCall:
    """Return the call ``number`` of ``layer`` as plain data."""
    arguments = ""
    with suppress(Exception):  # extra_repr may be user code
        arguments = layer.module.extra_repr()
    return LayerCall(layer.name, layer.type, number, arguments, tuple(inputs), tuple(outputs))


def describe_failure(
    layer: Layer, error: BaseException, capture: Capture | None, known: str
) -> ForwardFailure:
    """Return a description of a failure, without another run."""
    call = arguments_at(layer.module, error.__traceback__)
    inputs = describe_tensors(layer.module, call) if call else ()
    faults = mismatches(layer.module, call, str(error))
    failure = ForwardFailure(
        failed=layer_call(layer, 0, inputs),
        ran=_recorded_calls(capture),
        expected=known or " ".join(mismatch.text for mismatch in faults),
    )
    location = user_line(error.__traceback__)
    if location is None:
        return failure
    frame, line = location
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
    """The calls with a recorded output, in the order in which they returned."""
    outputs: dict[tuple[str, str, int], list[TensorInfo]] = {}
    for record in capture.records if capture is not None else ():
        if record.kind == OUTPUT:
            path = record.what.partition(".")[2]
            info = TensorInfo(path, record.shape, record.dtype, record.device)
            outputs.setdefault((record.module, record.type, record.call), []).append(info)
    return tuple(LayerCall(*call, outputs=tuple(infos)) for call, infos in outputs.items())
