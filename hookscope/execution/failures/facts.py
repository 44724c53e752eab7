"""What an exception in a forward pass shows by itself, without another run."""

from __future__ import annotations

from hookscope.execution.failures.expectations import mismatches
from hookscope.execution.failures.frames import (
    arguments_at,
    describe_tensors,
    short_path,
    source_line,
    user_line,
    variables_at,
)
from hookscope.execution.failures.observing import call_of
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer
from hookscope.results.failure import ForwardFailure, LayerCall, TensorInfo
from hookscope.specs.record_kinds import OUTPUT


def failure_in(
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
        failed=call_of(layer, 0, inputs),
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
