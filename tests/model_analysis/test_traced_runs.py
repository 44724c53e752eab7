"""Repeated traces: times of a model that sleeps, on a clock that this file moves."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookscopeError, RequestError
from hookscope.hooks import tracer
from hookscope.model_analysis import traced_runs
from hookscope.results.layer_times import LayerTime
from hookscope.results.trace import Trace
from hookscope.results.trace_events import BACKWARD, FORWARD
from hookscope.views.display import write_analysis
from tests.conftest import REPO
from tests.hooks.test_values import hooks_left
from tests.zoo import Module

DIGITS = f"{REPO}/sample_models/digits.py:trained"
TICK = 0.002  # seconds that pass with each look at the clock: what hooks cost
FACTORS = (9.0, 9.0, 1.0, 4.0, 2.0, 1.5, 3.0)  # of each run; the first two are warm-up
X = torch.ones(1, 2)


class Clock:
    """Stands still unless something sleeps."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick, self.factor = 0.0, tick, 1.0

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds * self.factor


class SleepOp(torch.autograd.Function):
    """Sleeps forward and backward."""

    @staticmethod
    def forward(ctx: Any, sleep: Callable[[float], None], seconds: Any, x: Tensor) -> Tensor:
        ctx.sleep, ctx.seconds = sleep, seconds
        sleep(seconds[0])
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.sleep(ctx.seconds[1])
        return None, None, grad


class Sleeper(nn.Module):
    """Sleeps by itself, after the modules inside it."""

    def __init__(self, sleep: Any, seconds: tuple[float, float], *inner: nn.Module) -> None:
        super().__init__()
        self.sleep, self.seconds = sleep, seconds
        self.inner = nn.Sequential(*inner)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return SleepOp.apply(self.sleep, self.seconds, self.inner(x) * self.weight)


def listed(sleep: Any, start: Callable[[], None] = lambda: None) -> Module:
    """Calls the layers in a list and in a Sequential one by one, and sleeps by itself."""

    def forward(self: Module, x: Tensor) -> Tensor:
        start()
        x = self.blocks[0](self.blocks[0](self.stem(x)))
        x = self.blocks[2](self.blocks[1]["a"](x))
        for layer in self.tail:
            x = layer(x)
        return SleepOp.apply(sleep, (16.0, 12.0), x)

    block = Sleeper(sleep, (0.5, 0.75), Sleeper(sleep, (1.0, 1.5)))
    pair = nn.ModuleDict({"a": Sleeper(sleep, (2.0, 1.0)), "unused": nn.Identity()})
    return Module(
        forward,
        stem=Sleeper(sleep, (0.25, 0.5)),
        blocks=nn.ModuleList([block, pair, Sleeper(sleep, (4.0, 3.0))]),
        tail=nn.Sequential(Sleeper(sleep, (8.0, 6.0)), nn.Identity()),
    )


# Seconds by itself and with all inside, forward and backward. None: it is never called.
SLEPT: dict[str, tuple[tuple[float, float] | None, tuple[float, float]]] = {
    ".": ((16.0, 12.0), (33.25, 27.0)),
    "stem": ((0.25, 0.5), (0.25, 0.5)),
    "blocks": (None, (9.0, 8.5)),
    "blocks.0": ((1.0, 1.5), (3.0, 4.5)),
    "blocks.0.inner": ((0.0, 0.0), (2.0, 3.0)),
    "blocks.0.inner.0": ((2.0, 3.0), (2.0, 3.0)),
    "blocks.1": (None, (2.0, 1.0)),
    "blocks.1.a": ((2.0, 1.0), (2.0, 1.0)),
    "blocks.2": ((4.0, 3.0), (4.0, 3.0)),
    "tail": (None, (8.0, 6.0)),
    "tail.0": ((8.0, 6.0), (8.0, 6.0)),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (tracer, traced_runs):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def rows(trace: Trace) -> dict[tuple[str, str], LayerTime]:
    assert trace.times is not None
    return {(layer.module, layer.direction): layer for layer in trace.times.layers}


def timed(clock: Clock, factors: tuple[float, ...] = FACTORS, warmup: int = 2) -> Trace:
    factor = iter((*factors, 1.0))  # and one for the run that is compared

    def start() -> None:
        clock.factor = next(factor)

    return hookscope.trace(
        listed(clock.sleep, start),
        input=X,
        loss="sum",
        repeat=len(factors) - warmup,
        warmup=warmup,
    )


def test_times_are_those_that_the_layers_slept(clock: Clock) -> None:
    trace = timed(clock)
    found = rows(trace)
    factors = np.array(FACTORS[2:])
    spread = np.subtract(*np.percentile(factors, [75, 25]))
    whole = np.median(factors) * 1000 * sum(SLEPT["."][1])
    for name, (by_itself, seconds) in SLEPT.items():
        for way, slept in zip((FORWARD, BACKWARD), seconds, strict=True):
            layer = found[name, way]
            assert layer.time.median == pytest.approx(np.median(factors) * slept * 1000)
            assert layer.time.spread == pytest.approx(spread * slept * 1000)
            assert layer.share == pytest.approx(layer.time.median / whole)
            own = (by_itself or (0.0, 0.0))[way == BACKWARD]
            assert layer.own.median == pytest.approx(np.median(factors) * own * 1000)
            assert layer.own_share == pytest.approx(layer.own.median / whole)
    assert found["blocks.0", FORWARD].calls == 2
    assert trace.total(FORWARD) == pytest.approx(np.median(factors) * SLEPT["."][1][0] * 1000)
    assert trace.times is not None
    assert (trace.times.repeat, trace.times.warmup) == (5, 2)
    assert trace.metadata["options"] == {"loss": "sum", "repeat": 5, "warmup": 2}


def test_what_hooks_cost_is_subtracted(clock: Clock) -> None:
    """The hooks cost one tick in the layer and one around it, as the empty module shows."""
    clock.tick = TICK
    trace = timed(clock, (1.0,) * 4)
    assert trace.times is not None
    for cost in trace.times.hooks.values():
        assert cost.inner == pytest.approx(TICK * 1000, rel=0.05)
        assert cost.outer == pytest.approx(TICK * 1000, rel=0.05)
    for (name, way), layer in rows(trace).items():
        slept = SLEPT.get(name, (None, (0.0, 0.0)))[1][way == BACKWARD] * 1000
        # No gradient leaves the model, so no hook says that its backward pass and that of the
        # first layer end.
        most = 1.5 if name in (".", "stem") else 0.5
        assert layer.time.median == pytest.approx(slept, abs=TICK * 1000 * most)


def test_real_sleep_is_seen_in_the_layer_that_sleeps() -> None:
    net = listed(lambda seconds: time.sleep(seconds / 500))
    found = rows(hookscope.trace(net, input=X, loss="sum", repeat=2, warmup=0))
    for name in ("tail.0", "blocks.2", "."):
        for way, slept in zip((FORWARD, BACKWARD), SLEPT[name][0] or (), strict=True):
            assert found[name, way].own.median >= slept * 1000 / 500 - 1
    assert hooks_left(net) == 0
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_model_is_listed_with_any_selection(clock: Clock) -> None:
    net = listed(clock.sleep)
    trace = hookscope.trace(net, input=X, loss="sum", layers=["blocks.2"], repeat=1)
    model, layer = [one for one in rows(trace).values() if one.direction == FORWARD]
    assert (model.module, layer.module) == (".", "blocks.2")
    assert layer.share == pytest.approx(4.0 / 60.25)
    assert model.own.median == pytest.approx(16000)  # without layers that are not listed
    assert layer.time.spread is None


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize(
    "chosen",
    [{"depth": 1}, {"depth": 2}, {"depth": 3}, {}, {"layers": ["blocks"]}, {"layers": ["tail.0"]}],
)
def test_own_time_is_without_all_layers_inside_whichever_are_listed(
    clock: Clock, chosen: dict[str, Any], warmup: int
) -> None:
    net = listed(clock.sleep)
    trace = hookscope.trace(net, input=X, loss="sum", repeat=2, warmup=warmup, **chosen)
    found = rows(trace)
    asked = {".", *chosen.get("layers", SLEPT)}
    deep = chosen.get("depth", 9)
    expected = {name for name in asked if name == "." or name.count(".") < deep}
    assert {name for name, _ in found} & set(SLEPT) == expected
    for name in expected:
        own, slept = SLEPT[name]
        for index, way in enumerate((FORWARD, BACKWARD)):
            layer = found[name, way]
            assert layer.time.median == pytest.approx(1000 * slept[index])
            assert layer.own.median == pytest.approx(1000 * (own or (0, 0))[index])
            assert (layer.calls == 0) is (own is None)
            assert layer.share == pytest.approx(slept[index] / 60.25)
    inside = [e for e in trace.events if e.direction == FORWARD and e.depth == 1]
    if "layers" not in chosen:  # a container's calls are those of the layers inside it
        assert sum(e.time for e in inside) == pytest.approx(33250 - 16000)


@pytest.mark.parametrize("depth", [1, 2, None])
def test_a_single_run_lists_the_layers_in_a_container_that_is_not_called(
    clock: Clock, depth: int | None
) -> None:
    trace = hookscope.trace(listed(clock.sleep), input=X, loss="sum", depth=depth)
    names = [event.module for event in trace.events if event.direction == FORWARD]
    top = [".", "stem", "blocks.0", "blocks.0", "blocks.1.a", "blocks.2", "tail.0", "tail.1"]
    assert [name for name in names if "inner" not in name] == top
    for index, way in enumerate((FORWARD, BACKWARD)):
        events = [event for event in trace.events if event.direction == way]
        own = sum(e.own for e in events if e.module == "blocks.0")
        assert own == pytest.approx(1000 * SLEPT["blocks.0"][0][index])
        assert events[0].own == pytest.approx(1000 * SLEPT["."][0][index])
        assert {e.depth for e in events if e.module in top[1:]} == {1}
    assert {"blocks", "tail"} <= {layer.module for layer in trace.coverage.not_executed}


def test_forward_only_has_no_backward_pass(clock: Clock) -> None:
    trace = hookscope.trace(listed(clock.sleep), input=X, forward_only=True, repeat=2)
    assert {layer.direction for layer in rows(trace).values()} == {FORWARD}
    assert trace.times is not None and set(trace.times.hooks) == {FORWARD}
    assert rows(trace)[".", FORWARD].share == pytest.approx(1)


def test_progress_counts_the_warm_up_too() -> None:
    done: list[tuple[int, int]] = []
    net = nn.Linear(2, 2)
    hookscope.trace(net, input=X, repeat=2, progress=lambda *pair: done.append(pair))
    assert done == [(i, 5) for i in range(1, 6)]  # three warm-up runs by default


def test_the_input_of_the_model_gets_no_gradient() -> None:
    seen: list[bool] = []
    first = Module(lambda self, x: seen.append(x.requires_grad) or x)
    net = nn.Sequential(first, nn.Linear(2, 2))
    trace = hookscope.trace(net, input=X, loss="sum", repeat=2, warmup=0)
    assert seen == [False] * 3
    assert [name for name, way in rows(trace) if way == BACKWARD] == [".", "1"]


def test_work_of_a_gpu_counts_where_it_was_started(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that a layer or a hook starts ends only when something waits for it."""
    gpu = SimpleNamespace(pending=0.0)

    def synchronize() -> None:
        clock.now, gpu.pending = clock.now + gpu.pending, 0.0

    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    timer = tracer.TraceClock(torch.device("cuda"))
    with timer.stopped() as before:
        gpu.pending += 5.0  # a clone that a hook makes
    gpu.pending += 2.0  # a layer
    with timer.stopped() as after:
        pass
    assert after - before == pytest.approx(2000)


def test_a_model_with_other_calls_in_each_run_is_refused() -> None:
    runs: list[int] = []

    def forward(self: Module, x: Tensor) -> Tensor:
        runs.append(1)
        for _ in runs:
            x = self.fc(x)
        return x

    net = Module(forward, fc=nn.Linear(2, 2))
    with pytest.raises(HookscopeError, match=r"fc has 1 .* 2 in run 2"):
        hookscope.trace(net, input=X, repeat=2, warmup=0, forward_only=True)


def test_wrong_numbers_of_runs_are_refused() -> None:
    for options in ({"warmup": 2}, {"repeat": 0}, {"repeat": 2, "warmup": -1}):
        with pytest.raises(RequestError, match=r"repeat|warmup"):
            hookscope.trace(nn.Linear(2, 2), input=X, **options)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Path]:
    folder = tmp_path_factory.mktemp("trace")
    trace = hookscope.trace(DIGITS, repeat=3, warmup=1)
    write_analysis(trace, folder / "t.html", 100)
    trace.save_chrome(folder / "chrome.json")
    return trace, folder


def test_the_trace_for_chrome_has_the_typical_run(written: tuple[Trace, Path]) -> None:
    trace, folder = written
    events = json.loads((folder / "chrome.json").read_text())["traceEvents"]
    begun = [event["name"] for event in events if event["ph"] == "B"]
    assert begun == [event.module for event in trace.events]


def test_bars_of_the_flame_graph_lie_within_each_other(written: tuple[Trace, Path]) -> None:
    trace, folder = written
    drawings = re.findall(r'<figure class="flame">(.*?)</figure>', (folder / "t.html").read_text())
    assert len(drawings) == 2
    for drawing, way in zip(drawings, (FORWARD, BACKWARD), strict=True):
        bars = list(ElementTree.fromstring(drawing))
        titles = [bar.findtext("title") or "" for bar in bars]
        calls = [event for event in trace.events if event.direction == way]
        assert [title.partition(" (")[0] for title in titles[1:]] == [e.module for e in calls[1:]]
        around: list[tuple[float, float]] = []
        for bar, event in zip(bars, calls, strict=True):
            left, width = (float(bar.attrib[name].rstrip("%")) for name in ("x", "width"))
            assert width == pytest.approx(100 * event.time / calls[0].time, abs=0.01)
            assert int(bar.attrib["y"]) == 20 * event.depth
            del around[event.depth :]
            if around:
                assert around[-1][0] - 0.01 <= left <= left + width <= around[-1][1] + 0.01
            around.append((left, left + width))
