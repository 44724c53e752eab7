"""Faults planted in a training: ``--stop-on`` ends it there, and ``check`` names step and layer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import hookscope
from hookscope.stores.runs.run_info import RunEvent
from tests.training.forked import FORKS, record

pytestmark = FORKS


def training(
    net: str, *, before: str = "", batch: str = "torch.randn(4, 4)", steps: int = 4, rate: float = 0
) -> str:
    """A script that trains a network; ``before`` runs before each step, with its number."""
    return f"""\
import torch
from torch import nn
class Mask(nn.Module):
    def forward(self, x):
        return x.masked_fill(torch.eye(4, dtype=torch.bool), float("-inf"))
class Divide(nn.Module):
    def forward(self, x):
        return x / (step != 2)
torch.manual_seed(0)
net = {net}
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr={rate})
for step in range({steps}):
    x = {batch}
{textwrap.indent(textwrap.dedent(before), "    ")}
    optimizer.zero_grad()
    net(x).float().square().mean().backward()
    optimizer.step()
print("end")
"""


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


@pytest.fixture
def stop(watched: Callable, work: Path) -> Callable[..., RunEvent]:
    """Run a script that ``--stop-on KINDS`` ends; return where it did."""

    def start(text: str, kinds: str, *options: str) -> RunEvent:
        ended = watched(text, "--stop-on", kinds, *options)
        assert (ended.status, ended.stdout.count("end")) == (1, 0)
        return stopped(work)

    return start


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
    assert f"step {step} ({phase}" in ended.messages[0]
    assert record(work).info["status"] == "stopped"
    capture = hookscope.load(work / "runs" / "script-1" / event.file)
    assert set(capture) == keys | {"./input.0"}  # the batch
    found = hookscope.check(work / "runs" / "script-1", only="nonfinite,unfinished").findings
    assert [one.check for one in found] == ["nonfinite", "unfinished"]
    assert {(one.step, one.layer) for one in found} == {(step, layer)}
    assert found[0].message == event.message and event.file in found[0].hint


def test_the_capture_has_what_the_call_got_although_the_script_has_it_no_more(
    stop, work: Path
) -> None:
    event = stop(
        """
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
        """,
        "nan",
    )
    capture = hookscope.load(work / "runs" / "script-1" / event.file)
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


def test_an_infinity_is_reported_where_it_began_and_not_at_a_mask(stop, work: Path) -> None:
    ends = "nn.Sequential(Divide(), nn.ReLU())"
    net = f"nn.Sequential(nn.Linear(4, 4), Mask(), nn.Softmax(-1), nn.Linear(4, 2), {ends})"
    event = stop(training(net, before="nn.init.constant_(net[3].bias, 1)"), "inf")
    assert (event.step, event.layer, event.kind) == (2, "4.0", "inf")
    capture = hookscope.load(work / "runs" / "script-1" / event.file)
    assert capture["4.0/input.0"].isfinite().all() and capture["4.0/output"].isinf().any()


BAD_BIAS = "net[0].bias.data.fill_(float('inf'))\nnet[1].weight.data.copy_(torch.eye(4))"
SPIKE = """
from small_training import train
def spike(step, model, optimizer, loss):
    if step == 30:
        {how}
train(40, spike)
"""
PAIR = "nn.Sequential(nn.Linear(4, 4), {0}nn.Linear(4, 4))"
# Each with the kinds of fault to stop at, and the step, phase, layer and kind of the first.
FAULTS = {
    "a NaN after an infinity": (
        training(PAIR.format(""), before=BAD_BIAS, batch="torch.ones(4, 4)"),
        ("nan,inf", 0, "forward", "1", "nan"),
    ),
    "an overflow of float16": (
        training(
            PAIR.format("") + ".half()",
            before="net[1].weight.data.fill_(60000 if step == 2 else 0)",
            batch="torch.full((2, 4), 100.0).half().abs()",
        ),
        ("inf", 2, "forward", "1", "inf"),
    ),
    "spike of a loss": (
        SPIKE.format(how="loss.data.mul_(1e4)"),
        ("spike", 30, "forward", "", "spike"),
    ),
    "spike of a norm": (
        SPIKE.format(how="loss.register_hook(lambda gradient: gradient * 1e4)"),
        ("spike", 30, "backward", "", "spike"),
    ),
    "dead units": (
        training(PAIR.format("nn.ReLU(), "), before="net[0].bias.data.fill_(-100)", steps=12),
        ("dead", 7, "forward", "1", "dead"),
    ),
    "vanishing gradients": (
        training(PAIR.format("nn.Sigmoid(), "), before="net[0].bias.data.fill_(-40)", steps=12),
        ("vanishing", 7, "backward", "0", "vanishing"),
    ),
    **{
        f"a NaN after {call}": (
            training(
                PAIR.format("nn.ReLU(), "),
                before=f"if step == 2:\n    torch.{call}\nif step == 6:\n    x[0, 0] = torch.nan",
                steps=8,
            ),
            ("nan", 6, "forward", "0", "nan"),
        )
        for call in ("jit.script(net)", "export.export(net, (x,))")
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_of_a_kind_of_fault_ends_the_script(stop, work: Path, fault: str) -> None:
    text, (kinds, *place) = FAULTS[fault]
    event = stop(text, kinds, "--every", "1")
    assert [event.step, event.phase, event.layer, event.kind] == place
    [found] = hookscope.check(work / "runs" / "script-1", only="unfinished").findings
    assert found.step == event.step and event.kind in found.message
    assert fault != "a NaN after an infinity" or "infinity from 0 " in event.message
    if "(net" in fault:
        assert record(work).curve("0/output", "rms").steps.tolist()[-3:] == [3, 4, 5]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (SCRIPT.format(fault="none"), "nan,inf,spike,dead,vanishing"),
        (training("nn.Sequential(nn.Linear(4, 4), Mask(), nn.Softmax(-1))"), "nan,inf"),
    ],
    ids=["healthy", "mask"],
)
def test_a_training_without_a_fault_is_not_stopped(both_ways, work, text: str, kinds: str) -> None:
    ended = both_ways(text, "--stop-on", kinds, "--every", "1")
    assert (ended.stdout, record(work).info["status"]) == ("end\n", "finished")
    assert not (work / "runs" / "script-1" / "stopped.capture.safetensors").exists()


DEEP = "nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("check", "layer", "before", "rate"),
    [
        ("dead", "1", "nn.init.constant_(net[0].bias, -100)", 0.01),
        ("unused", "2", "net.forward = lambda x: net[4](net[:4](x).detach())", 0.01),
        ("frozen", "2", "net[2].requires_grad_(False)", 0.01),
        ("learning-rate", None, "", 1.5),
    ],
)
def test_check_finds_a_planted_fault(
    watched, work: Path, check: str, layer: str | None, before: str, rate: float
) -> None:
    watched(training(DEEP, before=before, rate=rate, steps=40), "--every", "1")
    health = hookscope.check(work / "runs" / "script-1")
    found = health.of(check)
    assert found, health.findings
    layers = {name for finding in found for name in (finding.layer, *finding.others)}
    assert layer is None or layer in layers
    assert not health.of("incomplete")


def test_the_first_bad_value_is_found_afterwards(watched, work: Path) -> None:
    watched(SCRIPT.format(fault="forward"), "--every", "1")
    [finding] = hookscope.check(work / "runs" / "script-1", only="nonfinite").findings
    assert (finding.step, finding.layer) == (7, "log")


def test_the_first_step_with_another_order_of_batches_is_found(watched, work: Path) -> None:
    for order in ("0123456789", "0123445678"):
        batches = f"torch.arange(160.0).view(10, 4, 4)[int({order!r}[step])] / 160"
        watched(training("nn.Linear(4, 2)", batch=batches, steps=10, rate=0.1), "--every", "1")
    difference = hookscope.diff(*(work / "runs" / f"script-{number}" for number in (1, 2)))
    assert not difference.same
    assert difference.first is not None and difference.first.step == 5
