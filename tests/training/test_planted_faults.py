"""Faults planted in a training: ``--stop-on`` ends it there, and ``check`` names step and layer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import hookscope
from hookscope.stores.runs.run_info import RunEvent
from tests.training.forked import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks with torch imported"),
]

SCRIPT = """
import torch
from torch import nn
STEP = 0
class Log(nn.Module):
    def forward(self, x):
        return torch.log(x) if STEP == 7 and {fault!r} == "forward" else x
class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x * 0 if STEP == 5 and {fault!r} == "backward" else x.abs() + 1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.log, self.root = nn.Linear(8, 8), Log(), Root()
        self.act, self.last = nn.ReLU(), nn.Linear(8, 2)
    def forward(self, x):
        return self.last(self.act(self.root(self.log(self.first(x)))))
torch.manual_seed(0)
net = Net()
eps = 0 if {fault!r} == "optimizer" else 1e-8
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=eps)
for STEP in range(12):
    x = torch.randn(4, 8)
    if STEP == 3 and {fault!r} == "data":
        x[1, 2] = float("nan")
    loss = net(x).square().mean()
    if {fault!r} == "optimizer":
        loss = loss * (STEP >= 4)
    if STEP == 6 and {fault!r} == "loss":
        loss = (loss.detach() - loss.detach() - 1).log() + 0 * loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("end")
"""


def stopped(work: Path) -> RunEvent:
    [event] = record(work).events
    return event


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "step", "phase", "layer", "keys"),
    [
        ("forward", 7, "forward", "log", {"log/input.0", "log/output"}),
        ("backward", 5, "backward", "root", {"root/input.0", "root/output", "root/input.0.grad"}),
        ("optimizer", 0, "optimizer", "first", {"first/weight", "first/weight.grad"}),
        ("data", 3, "forward", "first", {"first/input.0", "first/output"}),
        ("loss", 6, "forward", "", set()),
    ],
)
def test_the_script_ends_at_the_first_nan(
    watched, work: Path, fault: str, step: int, phase: str, layer: str, keys: set[str]
) -> None:
    ended = watched(SCRIPT.format(fault=fault), "--stop-on", "nan")
    assert (ended.status, ended.stdout) == (1, "")
    event = stopped(work)
    assert (event.step, event.phase, event.layer) == (step, phase, layer)
    assert f"stopped the script at step {step} ({phase}" in ended.messages[0]
    assert record(work).info["status"] == "stopped"
    capture = hookscope.load(work / "runs" / "script-1" / event.file)
    assert set(capture) == keys | {"./input.0"}  # the batch
    [_, found] = hookscope.check(work / "runs" / "script-1", only="nonfinite,unfinished").findings
    assert (found.check, found.step, found.layer) == ("unfinished", step, layer)
    [found, _] = hookscope.check(work / "runs" / "script-1", only="nonfinite,unfinished").findings
    assert (found.check, found.step, found.layer) == ("nonfinite", step, layer)
    assert found.message == event.message and event.file in found.hint


def test_the_capture_has_what_the_call_got_although_the_script_has_it_no_more(
    watched, work: Path
) -> None:
    text = """
    import torch
    from torch import nn
    class Distance(nn.Module):
        def forward(self, a, b):
            return (a - b).square().sum(1).sqrt()
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.distance = nn.Linear(4, 3), Distance()
        def forward(self, a, b):
            return self.distance(self.fc(a), self.fc(b))
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    first, second = torch.randn(2, 5, 4)
    second[2] = first[2]
    torch.save((net.fc(first), net.fc(second), first), "expected.pt")
    net(first, second).sum().backward()
    """
    assert watched(text, "--stop-on", "nan").status == 1
    capture = hookscope.load(work / "runs" / "script-1" / stopped(work).file)
    a, b, batch = torch.load(work / "expected.pt")
    assert torch.equal(capture["distance/input.0"], a) and torch.equal(capture["./input.0"], batch)
    assert torch.equal(capture["distance/input.1"], b) and len(capture) == 6
    assert capture["distance/output"][2] == 0
    [which] = [key for key in capture if key.endswith(".grad")]
    assert capture[which].isnan().all(dim=1).tolist() == [False, False, True, False, False]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("saves", "call"),
    [
        ("torch.autograd.graph.save_on_cpu()", "net(x)"),
        ("nullcontext()", "checkpoint(net, x, use_reentrant=False)"),
    ],
)
def test_what_autograd_does_not_keep_is_not_kept_for_the_capture(
    both_ways, saves: str, call: str
) -> None:
    text = f"""
    import gc, torch
    from contextlib import nullcontext
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    net = nn.Sequential(nn.Linear(4, 7), nn.Sigmoid(), nn.Linear(7, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(3, 4)
        with {saves}:
            y = {call}
        if step:
            print(sum(type(t) is torch.Tensor and t.shape == (3, 7) for t in gc.get_objects()))
        y.sum().backward()
        optimizer.step()
    """
    both_ways(text, "--stop-on", "nan,inf", "--every", "1000")


def test_an_infinity_is_reported_where_it_began_and_not_at_a_mask(watched, work: Path) -> None:
    text = """
    import torch
    from torch import nn
    class Mask(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.eye(4, dtype=torch.bool), float("-inf"))
    class Divide(nn.Module):
        def forward(self, x):
            return x / (step != 2)
    last = nn.Sequential(Divide(), nn.ReLU())
    net = nn.Sequential(nn.Linear(4, 4), Mask(), nn.Softmax(-1), nn.Linear(4, 2), last)
    nn.init.constant_(net[3].bias, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        net(torch.rand(4, 4)).square().mean().backward()
        optimizer.step()
    """
    assert watched(text, "--stop-on", "inf").status == 1
    event = stopped(work)
    assert (event.step, event.layer, event.kind) == (2, "4.0", "inf")
    capture = hookscope.load(work / "runs" / "script-1" / event.file)
    assert capture["4.0/input.0"].isfinite().all() and capture["4.0/output"].isinf().any()


def test_a_nan_after_an_infinity_names_the_layer_of_both(watched, work: Path) -> None:
    text = """
    import torch
    from torch import nn
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        net[0].bias.fill_(float("inf"))
        net[1].weight.copy_(torch.eye(4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.rand(4, 4)).square().mean().backward()
    """
    assert watched(text, "--stop-on", "nan,inf").status == 1
    assert stopped(work).layer == "1"
    assert stopped(work).message == "NaN in output, whose input has an infinity from 0 already"


def test_a_healthy_training_is_not_stopped(both_ways, work: Path) -> None:
    kinds = "nan,inf,spike,dead,vanishing"
    ended = both_ways(SCRIPT.format(fault="none"), "--stop-on", kinds, "--every", "1")
    assert ended.stdout == "end\n"
    assert record(work).info["status"] == "finished"


def test_the_first_bad_value_is_found_afterwards(watched, work: Path) -> None:
    watched(SCRIPT.format(fault="forward"), "--every", "1")
    [finding] = hookscope.check(work / "runs" / "script-1", only="nonfinite").findings
    assert (finding.step, finding.layer) == (7, "log")


def test_a_mask_of_infinities_is_no_fault(both_ways, work: Path) -> None:
    text = """
    import torch
    from torch import nn
    class Mask(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.eye(4, dtype=torch.bool), float("-inf"))
    net = nn.Sequential(nn.Linear(4, 4), Mask(), nn.Softmax(-1), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    print("end")
    """
    assert both_ways(text, "--stop-on", "nan,inf").stdout == "end\n"
    assert not (work / "runs" / "script-1" / "stopped.capture.safetensors").exists()


def test_an_overflow_of_float16_is_found_at_its_layer(watched, work: Path) -> None:
    text = """
    import torch
    from torch import nn
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).half()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for step in range(5):
        if step == 2:
            with torch.no_grad():
                net[1].weight.fill_(60000)
        net(torch.full((2, 4), 100.0).half()).float().sum().backward()
        optimizer.step()
    """
    assert watched(text, "--stop-on", "inf").status == 1
    event = stopped(work)
    assert (event.step, event.layer) == (2, "1")


TRAINING = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
{before}
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr={rate})
for step in range(40):
    x = torch.randn(16, 8)
    y = x[:, :2].mul(2)
    loss = ({forward} - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("check", "layer", "before", "forward", "rate"),
    [
        ("dead", "1", "nn.init.constant_(net[0].bias, -100)", "net(x)", 0.01),
        ("unused", "2", "", "net[4](net[:4](x).detach())", 0.01),
        ("frozen", "2", "net[2].requires_grad_(False)", "net(x)", 0.01),
        ("learning-rate", None, "", "net(x)", 0.6),
    ],
)
def test_check_finds_a_planted_fault(
    watched, work: Path, check: str, layer: str | None, before: str, forward: str, rate: float
) -> None:
    watched(TRAINING.format(before=before, forward=forward, rate=rate), "--every", "1")
    health = hookscope.check(work / "runs" / "script-1")
    found = health.of(check)
    assert found, health.findings
    layers = {name for finding in found for name in (finding.layer, *finding.others)}
    assert layer is None or layer in layers
    assert not health.of("incomplete")


def test_the_first_step_with_another_order_of_batches_is_found(watched, work: Path) -> None:
    text = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = torch.randn(10, 8, 4)
    order = {order}
    for n in order:
        optimizer.zero_grad()
        net(batches[n]).square().mean().backward()
        optimizer.step()
    """
    for order in ("range(10)", "[0, 1, 2, 3, 4, 4, 5, 6, 7, 8]"):
        watched(text.format(order=order), "--every", "1")
    runs = [work / "runs" / f"script-{number}" for number in (1, 2)]
    difference = hookscope.diff(*runs)
    assert not difference.same
    assert difference.first is not None and difference.first.step == 5


def test_a_spike_ends_the_script(watched, work: Path) -> None:
    text = """
    from small_training import train
    def spike(step, model, optimizer, loss):
        loss.data.mul_(1 if step != 30 else 1e4)
    train(40, spike)
    """
    assert watched(text, "--stop-on", "spike").status == 1
    assert (stopped(work).step, stopped(work).kind) == (30, "spike")
    found = hookscope.check(work / "runs" / "script-1", only="unfinished").findings
    assert "--stop-on spike ended the script: a spike of the loss" in found[0].message
    assert found[0].step == 30


def test_a_spike_of_the_gradient_norm_ends_the_script(watched, work: Path) -> None:
    text = """
    from small_training import train
    def spike(step, model, optimizer, loss):
        if step == 30:
            loss.register_hook(lambda gradient: gradient * 1e4)
    train(40, spike)
    """
    assert watched(text, "--stop-on", "spike", "--every", "1").status == 1
    event = stopped(work)
    assert (event.step, event.phase) == (30, "backward") and "the gradient norm" in event.message


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "layer", "bias"), [("dead", "act", -100), ("vanishing", "first", -40)]
)
def test_units_that_stay_dead_and_gradients_that_stay_small_end_the_script(
    watched, work: Path, kind: str, layer: str, bias: int
) -> None:
    text = f"""
    import torch
    from collections import OrderedDict
    from torch import nn
    act = nn.ReLU() if {kind!r} == "dead" else nn.Sigmoid()
    net = nn.Sequential(OrderedDict(first=nn.Linear(8, 8), act=act, last=nn.Linear(8, 2)))
    nn.init.constant_(net.first.bias, {bias})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(12):
        net(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    """
    assert watched(text, "--stop-on", kind, "--every", "1").status == 1
    event = stopped(work)
    assert (event.step, event.kind, event.layer) == (7, kind, layer)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", ["torch.jit.script(net)", "torch.export.export(net, (x,))"])
def test_a_model_that_is_scripted_or_exported_in_the_middle_is_watched_on(
    watched, work: Path, call: str
) -> None:
    text = f"""
    import torch
    from torch import nn
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(8):
        x = torch.randn(3, 4)
        if step == 2:
            {call}
        if step == 6:
            x[0, 0] = float("nan")
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    """
    assert watched(text, "--every", "1", "--stop-on", "nan").status == 1
    assert (stopped(work).step, stopped(work).layer) == (6, "0")
    assert record(work).curve("0/output", "rms").steps.tolist()[-3:] == [3, 4, 5]
