"""Runs of a model with a tracer: one run, or the median of each layer's time over several.

Hooks in Python take microseconds in each call of a module. An empty module with the same hooks
shows how many: after each run, such a module is called, and the median is subtracted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward
from hookscope.execution.objective import Objective, differentiate
from hookscope.execution.prepare import Prepared
from hookscope.files.progress_types import Progress
from hookscope.files.signal_safety import signal_safe
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tracer import TraceClock, Tracer
from hookscope.results.layer_times import (
    HookCost,
    LayerTimes,
    check_same_calls,
    surrounding,
    typical_run,
    without_hooks,
)
from hookscope.results.trace import Trace
from hookscope.results.trace_events import (
    BACKWARD,
    FORWARD,
    ListedLayer,
    TraceEvent,
    called_in,
)
from hookscope.specs.command_options import TraceOptions
from hookscope.specs.patterns import ROOT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import detach_clone

_CALLS = 64  # of the empty module


def traced_run(prepared: Prepared, objective: Objective | None) -> Trace:
    """Run the model, and a loss backward, once; the metadata are those of the loss."""
    every = layers_of(prepared.module)
    tracer, loss, output = _run(prepared, objective, prepared.layers, every)
    return tracer.trace(loss, output)


def _run(
    prepared: Prepared,
    objective: Objective | None,
    layers: Sequence[Layer],
    inner: Sequence[Layer],
    *,
    input_gradients: bool = True,
) -> tuple[Tracer, dict[str, Any], Any]:
    backward = objective is not None
    clock = TraceClock(prepared.device)
    with (
        explain_forward_errors(prepared),
        signal_safe(torch.inference_mode(False)),
        grad_mode(backward),
        prepared.preserved(),
    ):
        with Tracer(
            prepared.module,
            layers,
            clock,
            backward=backward,
            input_gradients=input_gradients,
            inner=inner,
        ) as tracer:
            if objective is None:
                loss, output = {}, forward(prepared)
            else:
                recorder = Recorder(prepared.module, (), ())
                loss = differentiate(prepared, recorder, objective)
                output = recorder.capture.output
        output = detach_clone(output)
    return tracer, loss, output


def timed_runs(
    prepared: Prepared,
    objective: Objective | None,
    options: TraceOptions,
    progress: Progress | None = None,
) -> Trace:
    """Run the model again and again; return its calls and layers with medians of their times.

    The model itself is always among the layers, as the whole of which they are shares.
    """
    layers = list(prepared.layers)
    if all(layer.module is not prepared.module for layer in layers):
        layers.insert(0, Layer(ROOT, prepared.module))
    inner = every = layers_of(prepared.module)
    # The first run shows which layers call which, so it is not measured.
    warmup = options.warmup_runs or int(len(layers) < len(every))
    runs, costs = [], []
    total = warmup + options.runs
    for done in range(total):
        tracer, loss, output = _run(prepared, objective, layers, inner, input_gradients=False)
        if done == 0:
            first, listed = tracer.trace(loss, output), tracer.listed()
            inner = _called_within(tracer.events(), listed, every)
        if done >= warmup:
            runs.append(tracer.events())
            costs.append(hook_costs(prepared.device, backward=objective is not None))
        if progress is not None:
            progress(done + 1, total)
    check_same_calls(runs, listed)
    hooks = {way: HookCost.middle([cost[way] for cost in costs]) for way in costs[0]}
    runs = [without_hooks(run, hooks) for run in runs]
    times = LayerTimes.of(runs, listed, warmup, hooks)
    return replace(first, events=typical_run(runs, listed), times=times)


def _called_within(
    events: Sequence[TraceEvent], listed: Sequence[ListedLayer], every: Sequence[Layer]
) -> list[Layer]:
    """The layers that stand for those listed, or that these call.

    Hooks on more layers than these would make the times less exact.
    """
    shown = called_in(listed)
    within = {
        event.module
        for event, around in zip(events, surrounding(events), strict=True)
        if around and events[around[-1]].module in shown
    }
    return [layer for layer in every if layer.name in shown | within]


class _EmptyCalls(nn.Module):
    """Calls an empty module many times."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        empty = self.empty  # finding it takes as long as calling it
        for _ in range(_CALLS):
            x = empty(x)
        return x


def hook_costs(device: torch.device, *, backward: bool) -> dict[str, HookCost]:
    """Return what the hooks of a tracer cost now, by direction: those of an empty module."""
    module = _EmptyCalls()
    x = torch.zeros(1, device=device, requires_grad=backward)
    layers = [Layer(ROOT, module), Layer("empty", module.empty)]
    with signal_safe(torch.inference_mode(False)), grad_mode(backward):
        module(x)
        start = time.perf_counter()
        module(x)
        call = (time.perf_counter() - start) * 1000 / _CALLS
        tracer = Tracer(
            module, layers, TraceClock(device), backward=backward, input_gradients=False
        )
        with tracer:
            output = module(x)
            if backward:
                output.backward()
    events = tracer.events()
    # Backward, an empty module does nothing.
    bare = {FORWARD: call, **({BACKWARD: 0.0} if backward else {})}
    return {way: _cost(events, way, time) for way, time in bare.items()}


def _cost(events: Sequence[TraceEvent], direction: str, call: float) -> HookCost:
    """The cost of the hooks in one direction, in which a call without hooks takes ``call``."""
    outer, *calls = (event for event in events if event.direction == direction)
    inside = median(event.time for event in calls)
    return HookCost(max(inside - call, 0.0), max(outer.own - inside, 0.0) / _CALLS)
