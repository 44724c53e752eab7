"""Watch a model run: which module was called when, within which other, and for how long.

The clock stands still while a hook of ours works, so what is measured is the model, and PyTorch's
own effort to call the hooks. On the way back a module begins where the gradient arrives at its
outputs and ends where it leaves its inputs; two gates in the graph tell
(``hookscope.tensors.gradient_gate``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.hooks.layer_coverage import summarize_coverage
from hookscope.hooks.layers import Layer
from hookscope.hooks.registry import HookSet, inside_backward
from hookscope.results.trace_events import BACKWARD, FORWARD, Shape, Trace, TraceEvent
from hookscope.tensors.gradient_gate import BackwardHookPair, Grads
from hookscope.tensors.interrupts import SignalSafeContext
from hookscope.tensors.nested import map_tensors, walk


class _Clock:
    """Milliseconds since it was made, less those for which it was stopped."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lost = 0.0
        self._zero = time.perf_counter()

    @contextmanager
    def stopped(self) -> Iterator[float]:
        """Stop the clock for the block, and tell what it shows."""
        if self.device.type != "cpu":  # what was asked of a GPU before is to be over
            torch.accelerator.synchronize()
        now = time.perf_counter()
        try:
            yield (now - self._zero - self._lost) * 1000
        finally:
            self._lost += time.perf_counter() - now


@dataclass(eq=False)
class _Span:
    """One call of a module in one direction, not necessarily over yet.

    ``within`` is the call that it ran in; ``layer_call`` for one on the way back the call forward.
    """

    direction: str
    layer: Layer
    call: int
    within: _Span | None
    start: float
    call_of: _Span | None = None
    depth: int = 0
    end: float = 0.0
    inner: float = 0.0
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    bytes: int = 0
    way: BackwardHookPair | None = field(default=None, repr=False)

    def lies_in(self, other: _Span | None) -> bool:
        """Whether it is ``other`` or ran within it."""
        return self is other or (self.within is not None and self.within.lies_in(other))

    def event(self) -> TraceEvent:
        """The span as plain data, once it is over."""
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


class _Running(threading.local):
    """The calls that are under way on this thread; None for one that is not noted."""

    def __init__(self) -> None:
        self.spans: list[_Span | None] = []


class Tracer(SignalSafeContext["Tracer"]):
    """Notes every call of the chosen layers of a model while the ``with`` block runs.

    Args:
        model: the model whose layers these are.
        layers: which modules to watch.
        device: where the model runs.
        backward: whether to watch the way back too, which hands clones through the model.
    """

    def __init__(
        self, model: nn.Module, layers: Iterable[Layer], device: torch.device, *, backward: bool
    ) -> None:
        self.model = model
        self.layers = tuple(layers)
        self.backward = backward
        self._clock = _Clock(device)
        self._hooks = HookSet(model)
        self._spans: list[_Span] = []
        self._calls: dict[nn.Module, int] = {}
        self._running = _Running()
        self._opener: list[_Span | None] = []  # what runs on the thread that opened it
        self._returning: list[_Span] = []
        self._open = False
        self._counting = threading.Lock()  # replicas of one model run on a thread each

    def _enter(self) -> Tracer:
        self._opener = self._running.spans
        with self._hooks.attaching() as hooks:
            if self.backward:
                hooks.before(self.model, self._ask_for_gradient)
            for layer in self.layers:
                hooks.before(layer.module, partial(self._before, layer))
                hooks.after(layer.module, self._after, always=True)
            self._open = True
        return self

    def _leave(self, *error: object) -> None:
        self._open = False
        self._hooks.__exit__(None, None, None)
        with self._clock.stopped() as now:
            while self._returning:
                self._close(now)

    def trace(self, metadata: dict[str, Any], output: Any) -> Trace:
        """Return what was noted."""
        coverage = summarize_coverage(
            self.model, self.layers, self._calls, self._hooks.called_elsewhere
        )
        return Trace(tuple(span.event() for span in self._spans), coverage, metadata, output)

    def _ask_for_gradient(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with self._clock.stopped():
            asked: tuple[tuple[Any, ...], dict[str, Any]] = map_tensors((args, kwargs), _asked)
        return asked

    def _before(
        self, layer: Layer, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        with self._clock.stopped() as now:
            running = self._running.spans
            if not self._open or inside_backward():  # a module that runs again for the way back
                running.append(None)
                return None
            with self._counting:
                number = self._calls[layer.module] = self._calls.get(layer.module, 0) + 1
            # A replica's thread is within the call that started it.
            above = running if running is self._opener else [*self._opener, *running]
            outside = [span for span in above if span]
            outer = outside[-1] if outside else None
            span = _Span(FORWARD, layer, number, outer, now, depth=len(outside))
            span.inputs = _shapes((args, kwargs))
            self._spans.append(span)
            running.append(span)
            if not self.backward:
                return None
            span.way = BackwardHookPair(partial(self._left, span), partial(self._arrived, span))
            given: tuple[tuple[Any, ...], dict[str, Any]] = span.way.enter((args, kwargs))
            return given

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        with self._clock.stopped() as now:
            span = self._running.spans.pop() if self._running.spans else None
            if span is None:
                return None
            span.end = now
            if span.within is not None:
                span.within.inner += span.end - span.start
            span.outputs, span.bytes = _shapes(output), _size(output)
            return span.way.leave(output) if span.way is not None else None

    def _arrived(self, forward: _Span, grads: Grads) -> None:
        """Gradients have come to the outputs of a call: its way back begins."""
        with self._clock.stopped() as now:
            if not self._open or not self._hooks.threads.includes_current_thread():
                return
            while self._returning and not forward.lies_in(self._returning[-1].call_of):
                self._close(now)
            outer = self._returning[-1] if self._returning else None
            span = _Span(BACKWARD, forward.layer, forward.call, outer, now, call_of=forward)
            span.depth = len(self._returning)
            span.outputs, span.bytes = _shapes(grads), _size(grads)
            self._spans.append(span)
            self._returning.append(span)

    def _left(self, forward: _Span, into: Grads, out: Grads) -> Grads:
        """Gradients leave a call through its inputs: its way back is over."""
        if not self._hooks.threads.includes_current_thread():
            return into
        with self._clock.stopped() as now:
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


def _asked(path: tuple[str, ...], tensor: Tensor) -> Tensor:
    """A tensor that a gradient comes back to; a clone, as a leaf may not be changed in place."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_().clone()


def _shapes(value: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for _, tensor in walk(value))


def _size(value: Any) -> int:
    distinct = {id(tensor): tensor for _, tensor in walk(value)}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct)
