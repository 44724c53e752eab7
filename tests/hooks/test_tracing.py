"""A trace has every call in the order in which it was made, nested as it was made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError
from hookscope.results.trace import Trace
from hookscope.results.trace_events import TraceEvent
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.hooks.recordings import hooks_left
from tests.zoo import ZOO, Checkpointed, Fails, Module

SAMPLES = REPO / "sample_models"
INNER = ["conv1", "relu1", "conv2", "relu2", "pool", "fc"]


def of(trace: Trace, direction: str) -> list[TraceEvent]:
    return [event for event in trace.events if event.direction == direction]


def names(events: Sequence[TraceEvent]) -> list[tuple[str, int]]:
    return [(event.module, event.depth) for event in events]


@pytest.mark.parametrize("file", FORMS)
def test_forward_then_backward_in_order(file: str) -> None:
    trace = hookscope.trace(f"{SAMPLES}/{file}")
    inner = [(name, 1) for name in INNER]
    assert names(of(trace, "forward")) == [(".", 0), *inner]
    assert names(of(trace, "backward")) == [(".", 0), *reversed(inner)]
    assert [e.direction for e in trace.events] == ["forward"] * 7 + ["backward"] * 7
    first = of(trace, "forward")[1]
    assert (first.inputs, first.outputs) == (((1, 1, 8, 8),), ((1, 16, 8, 8),))
    assert (first.type, first.call, first.bytes) == ("Conv2d", 1, 16 * 64 * 4)
    last = of(trace, "backward")[-1]
    assert (last.inputs, last.outputs) == (((1, 1, 8, 8),), ((1, 16, 8, 8),))


def test_forward_order_is_that_of_hooks_by_hand() -> None:
    net = hookscope.load_model("resnet18").module
    order: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda m, i, name=name: order.append(name or "."))
        for name, module in net.named_modules()
    ]
    x = torch.randn(1, 3, 32, 32)
    net(x)
    for handle in handles:
        handle.remove()
    trace = hookscope.trace(net, input=x)
    assert [event.module for event in of(trace, "forward")] == order
    back = of(trace, "backward")
    assert sorted(e.module for e in back) == sorted(order)
    assert [e.call for e in back if e.module == "layer3.0.relu"] == [2, 1]


def test_every_call_lies_within_its_own_parent_both_ways() -> None:
    trace = hookscope.trace("resnet18", shape=(1, 3, 32, 32))
    for direction in ("forward", "backward"):
        above: list[TraceEvent] = []
        for event in of(trace, direction):
            del above[event.depth :]
            parts = event.module.split(".") if event.module != "." else [""]
            parents = [".".join(parts[: i + 1]) for i in range(len(parts) - 1)]
            assert [e.module for e in above][1:] == parents
            if above:
                assert above[-1].start <= event.start
                assert event.start + event.time <= above[-1].start + above[-1].time + 1e-6
            assert 0 <= event.own <= event.time
            above.append(event)


def test_layers_that_are_not_chosen_leave_no_gap_in_the_nesting() -> None:
    trace = hookscope.trace("resnet18", layers=["layer4", "*.conv2"], shape=(1, 3, 32, 32))
    assert [x for x in names(of(trace, "forward")) if "layer4" in x[0]] == [
        ("layer4", 0),
        ("layer4.0.conv2", 1),
        ("layer4.1.conv2", 1),
    ]


def test_forward_only_runs_without_autograd() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return self.step(x)

    net = Module(forward, step=nn.Linear(2, 2))
    trace = hookscope.trace(net, input=torch.ones(1, 2), forward_only=True)
    assert torch.is_grad_enabled()  # it is as it was
    assert names(trace.events) == [(".", 0), ("step", 1)]
    assert "loss" not in trace.metadata


def test_in_place_models_and_odd_outputs_are_traced() -> None:
    trace = hookscope.trace(f"{SAMPLES}/tricky.py:Tricky")
    assert [e.call for e in of(trace, "forward") if e.module == "act"] == [1, 2]
    assert [e.call for e in of(trace, "backward") if e.module == "act"] == [2, 1]
    assert {s.module for s in trace.coverage.not_executed} == {"branches", "branches.1", "extra"}


def test_what_is_run_again_for_the_backward_pass_is_no_call() -> None:
    trace = hookscope.trace(Checkpointed(), input=torch.ones(1, 4), loss="sum")
    assert [e.module for e in of(trace, "forward")] == [".", *ZOO["checkpointed"].calls]


def test_an_error_in_the_model_leaves_no_hook() -> None:
    net = Fails(ValueError("from the model"))
    with pytest.raises(ForwardError, match="bad"):
        hookscope.trace(net, input=torch.ones(1, 4))
    assert hooks_left(net) == 0


def test_the_trace_for_chrome_is_nested_pair_by_pair(tmp_path: Path) -> None:
    trace = hookscope.trace("resnet18", shape=(1, 3, 32, 32))
    trace.save_chrome(tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = document["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {1: "forward", 2: "backward"}
    for tid, direction in threads.items():
        running: list[str] = []
        began: list[str] = []
        times = []
        for event in (e for e in events if e["tid"] == tid and e["ph"] in "BE"):
            times.append(event["ts"])
            if event["ph"] == "B":
                assert event["cat"] == direction and event["args"]["call"] >= 1
                running.append(event["name"])
                began.append(event["name"])
            else:
                assert running.pop() == event["name"]
        assert running == [] and times == sorted(times) and times[0] >= 0
        assert began == [event.module for event in of(trace, direction)]
