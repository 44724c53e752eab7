"""Trace a run: which module was called when, within which other, and for how long.

The clock is stopped while a hook of hookscope runs. In the backward pass a module begins when the
gradient arrives at its outputs and ends when the gradient leaves its inputs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.layers import Layer, summarize_coverage
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.registry import CallRegistry
from hookscope.results.records import Coverage
from hookscope.results.trace import Trace
from hookscope.results.trace_events import (
    BACKWARD,
    FORWARD,
    ListedLayer,
    Shape,
    TraceEvent,
    called_in,
)
from hookscope.specs.patterns import ROOT
from hookscope.tensors.grad_mode import BackwardHookPair, Grads
from hookscope.tensors.nested import map_tensors, walk


class TraceClock:
    """Milliseconds since it was made, without those for which it was stopped."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lost = 0.0
        self._zero = time.perf_counter()

    @contextmanager
    def stopped(self) -> Iterator[float]:
        """Stop the clock for the block; yields its time."""
        self._finish_work()  # that of the layers, which counts
        now = time.perf_counter()
        try:
            yield (now - self._zero - self._lost) * 1000
        finally:
            self._finish_work()  # that of the hooks, which does not
            self._lost += time.perf_counter() - now

    def _finish_work(self) -> None:
        """Wait until the GPU has finished what it was told to do."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()


@dataclass(eq=False)
class Span:
    """One call of a module in one direction; ``within`` is the span of the surrounding call."""

    direction: str
    layer: Layer
    call: int
    within: Span | None
    start: float
    call_of: Span | None = None
    depth: int = 0
    end: float = 0.0
    inner: float = 0.0
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    bytes: int = 0
    gates: BackwardHookPair | None = field(default=None, repr=False)

    def is_within(self, other: Span | None) -> bool:
        """Whether it is ``other`` or ran within it."""
        return self is other or (self.within is not None and self.within.is_within(other))

    def surrounding(self) -> Iterator[Span]:
        """Yield the spans around it, the innermost first."""
        if self.within is not None:
            yield self.within
            yield from self.within.surrounding()

    def event(self) -> TraceEvent:
        """The span as plain data, once it has ended."""
        took = self.end - self.start
        return TraceEvent(
            self.direction,
            self.layer.name,
            self.layer.type,
            self.call,
            self.depth,
            self.inputs,
            self.outputs,
            self.bytes,
            self.start,
            took,
            max(took - self.inner, 0.0),
        )


class _RunningCall(threading.local):
    """The spans of open calls on this thread, the innermost last."""

    def __init__(self) -> None:
        self.spans: list[Span] = []


class _GradientRequest(CallSubscriber):
    """Gives a model inputs that require grad, so that gradients reach them."""

    def __init__(self, clock: TraceClock) -> None:
        self.clock = clock

    def before_call(self, call: ModuleCall) -> None:
        """Replace the inputs."""
        with self.clock.stopped():
            call.args, call.kwargs = map_tensors((call.args, call.kwargs), _requiring_grad)


class Tracer(CallSubscriber, SignalSafeContext["Tracer"]):
    """Records every call of the chosen layers of a model while the ``with`` block runs.

    The calls of ``inner`` are traced too, but not listed: a layer's own time is without them.

    With ``input_gradients`` the inputs of the model get gradients too, so that the first layers end
    when these leave. Otherwise they end with the next layer or with the block.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[Layer],
        clock: TraceClock,
        *,
        backward: bool,
        input_gradients: bool = True,
        calls: CallRegistry | None = None,
        inner: Iterable[Layer] = (),
    ) -> None:
        self.layers = tuple(layers)
        self.traced = tuple({layer.key: layer for layer in (*self.layers, *inner)}.values())
        # What is known of modules that are gone: why they did not run, and what was in them.
        self._causes: dict[str, str] = {}
        self._children: dict[Hashable, list[Hashable]] = {}
        self.backward = backward
        self.input_gradients = input_gradients
        self.clock = clock
        self.calls = CallRegistry(model) if calls is None else calls
        self._gradient_request = _GradientRequest(self.clock)
        self.spans: list[Span] = []
        self._running = _RunningCall()
        self._opener: list[Span] = []  # the open spans of the thread that entered the block
        self._returning: list[Span] = []
        self._open = False

    def _enter(self) -> Tracer:
        self._opener = self._running.spans
        if self.backward and self.input_gradients:
            self.calls.subscribe(self._gradient_request, [Layer(ROOT, self.model)])
        try:
            self.calls.subscribe(self, self.traced)
        except BaseException:
            self.calls.unsubscribe(self._gradient_request)
            raise
        self._open = True
        return self

    def _leave(self, *error: object) -> None:
        self._open = False
        for subscriber in (self._gradient_request, self):
            self.calls.unsubscribe(subscriber)
        with self.clock.stopped() as now:
            while self._returning:
                self._close(now)

    def trace(self, metadata: dict[str, Any], output: Any) -> Trace:
        """Return the events."""
        shown = called_in(self.listed())
        events = (
            replace(span.event(), depth=sum(one.layer.name in shown for one in span.surrounding()))
            for span in self.spans
            if span.layer.name in shown
        )
        return Trace(tuple(events), self.coverage(), metadata, output)

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.calls.model

    def note_state(self) -> None:
        """Note what the modules are asked for in the end; those of a program may be gone then."""
        self._causes = {one.module: one.reason for one in self.coverage().not_executed}
        self._children = {layer.key: self._inside(layer.key) for layer in self.traced}

    def coverage(self) -> Coverage:
        """Return which layers ran, and why the others did not."""
        counts = self.calls.counts_of({layer.key for layer in self.layers})
        elsewhere = self.calls.hooks.called_elsewhere
        return summarize_coverage(self.model, self.layers, counts, elsewhere, self._causes)

    def events(self) -> tuple[TraceEvent, ...]:
        """Return the events of all traced layers."""
        return tuple(span.event() for span in self.spans)

    def listed(self) -> list[ListedLayer]:
        """Return the chosen layers, each with those whose calls stand for it."""
        called = {span.layer.key for span in self.spans}
        names = {layer.key: layer.name for layer in self.traced}
        return [
            ListedLayer(
                layer.name,
                layer.type,
                frozenset(names[key] for key in self._nearest(layer.key, called)),
            )
            for layer in self.layers
        ]

    def _nearest(self, key: Hashable, called: Container[Hashable]) -> Iterator[Hashable]:
        """The module itself, or if it was not called, the nearest ones inside it that were."""
        if key in called:
            yield key
        else:
            for child in self._inside(key):
                yield from self._nearest(child, called)

    def _inside(self, key: Hashable) -> list[Hashable]:
        """The keys of the modules in one, as they are now or as they were noted."""
        module = key if isinstance(key, nn.Module) else key()  # type: ignore[operator]
        if module is None:
            return self._children.get(key, [])
        return [self.calls.hooks.key_of(child) for child in module.children()]

    def before_call(self, call: ModuleCall) -> Span | None:
        """Begin the span of a call."""
        with self.clock.stopped() as now:
            running = self._running.spans
            if not self._open or not call.number:  # a module that is recomputed
                return None
            # A replica's thread is within the call that started it.
            outside = running if running is self._opener else [*self._opener, *running]
            outer = outside[-1] if outside else None
            span = Span(FORWARD, call.layer, call.number, outer, now, depth=len(outside))
            span.inputs = _shapes((call.args, call.kwargs))
            self.spans.append(span)
            running.append(span)
            if self.backward:
                span.gates = BackwardHookPair(
                    partial(self._on_input_gradients, span),
                    partial(self._on_output_gradients, span),
                )
                try:
                    call.args, call.kwargs = span.gates.enter((call.args, call.kwargs))
                except BaseException:  # ``after_call`` will not be called
                    self.abandon_call(call, span)
                    span.end = now
                    raise
            return span

    def after_call(self, call: ModuleCall, span: Span | None) -> None:
        """End the span of a call."""
        with self.clock.stopped() as now:
            if span is None:
                return
            self.abandon_call(call, span)
            span.end = now
            if span.within is not None:
                span.within.inner += span.end - span.start
            span.outputs, span.bytes = _shapes(call.output), _size(call.output)
            if span.gates is not None:
                call.output = span.gates.leave(call.output)

    def abandon_call(self, call: ModuleCall, span: Span | None) -> None:
        """Remove the span of a call, and those within it, from the open ones."""
        running = self._running.spans
        if span in running:
            del running[running.index(span) :]

    def _on_output_gradients(self, forward: Span, grads: Grads) -> None:
        """Gradients have arrived at the outputs of a call: its backward span begins."""
        with self.clock.stopped() as now:
            if not self._open or not self.calls.hooks.threads.includes_current_thread():
                return
            while self._returning and not forward.is_within(self._returning[-1].call_of):
                self._close(now)
            outer = self._returning[-1] if self._returning else None
            span = Span(BACKWARD, forward.layer, forward.call, outer, now, call_of=forward)
            span.depth = len(self._returning)
            span.outputs, span.bytes = _shapes(grads), _size(grads)
            self.spans.append(span)
            self._returning.append(span)

    def _on_input_gradients(self, forward: Span, into: Grads, out: Grads) -> Grads:
        """Gradients leave a call through its inputs: its backward span ends."""
        if not self.calls.hooks.threads.includes_current_thread():
            return into
        with self.clock.stopped() as now:
            known = any(span.call_of is forward for span in self._returning)
            if known and any(grad is not None for grad in into):
                while self._returning[-1].call_of is not forward:
                    self._close(now)
                self._returning[-1].inputs = _shapes(into)
                self._close(now)
        return into

    def _close(self, now: float) -> None:
        span = self._returning.pop()
        span.end = now
        if span.within is not None:
            span.within.inner += span.end - span.start


def _requiring_grad(path: tuple[str, ...], tensor: Tensor) -> Tensor:
    """A tensor that requires grad; a clone, because a leaf must not be changed in place."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_().clone()


def _shapes(value: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for _, tensor in walk(value))


def _size(value: Any) -> int:
    distinct = {id(tensor): tensor for _, tensor in walk(value)}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct)
