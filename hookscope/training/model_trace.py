"""Lists the calls of the layers in the models of a program, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn

from hookscope.hooks.hook_set import LastingHooks
from hookscope.hooks.layers import Layer
from hookscope.hooks.module_call import ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.tracer import Span, TraceClock, Tracer
from hookscope.results.records import Coverage
from hookscope.results.trace import Trace
from hookscope.training.hooked_models import CallGate, HookedModel, HookedModels
from hookscope.training.script_messages import reported

MAX_CALLS = 100_000  # of the layers of one model; each takes about 500 bytes


class ModelTracer(Tracer):
    """Traces the layers of one model during chosen calls; it never raises into the program."""

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[Layer],
        clock: TraceClock,
        gate: CallGate,
        inner: Sequence[Layer],
    ) -> None:
        calls = CallRegistry(model, LastingHooks(model))
        super().__init__(model, layers, clock, backward=False, calls=calls, inner=inner)
        self._gate = gate

    def before_call(self, call: ModuleCall) -> Span | None:
        """Begin the span of a call, if its model's call is chosen."""
        if not self._gate.is_open or len(self.spans) >= MAX_CALLS:
            return None
        with reported("a call is not listed"):
            return super().before_call(call)
        return None


class TracedModel(HookedModel):
    """A model whose calls of chosen layers are listed."""

    def __init__(self, name: str, module: nn.Module, gate: CallGate, clock: TraceClock) -> None:
        super().__init__(name, module, gate)
        self.clock = clock

    @cached_property
    def observer(self) -> ModelTracer:
        """The tracer of the layers."""
        return ModelTracer(self.module, self.layers, self.clock, self.gate, self.every)


class ModelTrace(HookedModels[TracedModel]):
    """Lists the calls of the chosen layers of all models of a program."""

    def make(self, name: str, module: nn.Module) -> TracedModel:
        """Return a model whose calls will be listed."""
        first = next(module.parameters(), None)
        if not self.models:
            self._clock = TraceClock(torch.device("cpu") if first is None else first.device)
        return TracedModel(name, module, CallGate(self.choice), self._clock)

    def result(self, metadata: dict[str, Any]) -> Trace:
        """Return the calls of all models in the order in which they began."""
        traces = [model.observer.trace({}, None) for model in self.models.values()]
        events = sorted((e for trace in traces for e in trace.events), key=lambda e: e.start)
        coverage = Coverage.joined(trace.coverage for trace in traces)
        return Trace(tuple(events), coverage, metadata)
