"""The tensors of one run of a model, passed on as they come and not stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor

from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward
from hookscope.execution.prepare import Prepared
from hookscope.hooks.layers import layers_of
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import SinkBase
from hookscope.results.records import Record
from hookscope.results.stats import Stats
from hookscope.specs.diff_sides import label_errors
from hookscope.tensors.grad_mode import grad_mode


class StreamingSink(SinkBase):
    """Passes each tensor on as it comes; its capture holds records without tensors.

    The model may change a tensor in place after that: who keeps one makes a clone.
    """

    def __init__(self, receive: Callable[[Record, Tensor], None]) -> None:
        super().__init__()
        self._receive = receive

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Pass a tensor on."""
        if self.is_readable(key, tensor):
            detached = tensor.detach()
            origin, summary = key.origin(), partial(Stats)
            record = self.capture.put(detached, **origin, held=False, summary=summary)
            self._receive(record, detached)

    def store_gradient(
        self, key: RecordKey, gradient: Tensor, weight_norm: float | None = None
    ) -> None:
        """Pass a gradient on."""
        self.store(key, gradient)


def list_records(
    prepared: Prepared,
    kinds: Iterable[str],
    side: int,
    look: Callable[[Record, Tensor], None] = lambda record, tensor: None,
) -> tuple[Record, ...]:
    """Run a model; return the records of all layers. ``look`` gets each with its tensor."""
    layers = layers_of(prepared.module)
    sink = StreamingSink(look)
    recorder = Recorder(prepared.module, layers, kinds, sink=sink)
    explained, preserved = explain_forward_errors(prepared), prepared.preserved()
    with label_errors(side), explained, preserved, grad_mode(False), recorder:
        forward(prepared, sink.capture)
    return sink.capture.records
