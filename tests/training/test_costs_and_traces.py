"""Steps of many calls, numbers that wait on a device, modes of a script, and what is left."""

from __future__ import annotations

import gc
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import TorchFunctionMode

from bench.operators import as_on_a_device
from hookscope.training import tensor_measures
from tests.training.measured_by_hand import ByHand, assert_same_rows, by_hand, recorded, watched
from tests.training.test_measures import net

pytestmark = pytest.mark.usefixtures("no_other_models")


def test_numbers_that_wait_on_a_device_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the CPU are queued as if they had to be copied, in the middle of a step too."""
    monkeypatch.setattr(tensor_measures, "MAX_QUEUED", 20)
    model = net()
    hand = ByHand(model)
    with as_on_a_device(), watched(tmp_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for bad in (1.0, 2.0, math.inf):
            for size in (4, 3, 5, 2, 6, 3):
                model(torch.full((size, 6), bad)).square().sum().backward()
            with by_hand(hand):
                optimizer.step()
            hand.end()
            optimizer.zero_grad()
    rows = recorded(tmp_path)
    assert_same_rows(rows[:2], hand.rows[:2])
    assert rows[2]["0/output", "nonfinite"] == hand.rows[2]["0/output", "nonfinite"] > 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("evaluates", [False, True], ids=["accumulation", "teacher"])
def test_a_step_of_any_number_of_calls_takes_no_more_memory(
    tmp_path: Path, evaluates: bool
) -> None:
    model, teacher = net(), net().eval()
    sizes = []
    with watched(tmp_path, what="activations,gradients,parameters"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for calls in (3, 1500):
            for _ in range(calls):
                if evaluates:
                    with torch.no_grad():
                        teacher(torch.ones(2, 6))
                else:
                    model(torch.ones(2, 6)).sum().backward()
            gc.collect()
            sizes.append(len(gc.get_objects()))
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
    assert sizes[1] < sizes[0] + 2000
    name = "teacher" if evaluates else "model"
    assert [row["0/output", "nonfinite"] for row in recorded(tmp_path, name)] == [0, 0]


class Seen(TorchFunctionMode):
    """Notes the functions of PyTorch that are called within it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def test_a_mode_of_the_script_sees_nothing_of_what_is_measured(tmp_path: Path) -> None:
    seen = []
    for watches in (False, True):
        model = net()
        with watched(tmp_path) if watches else nullcontext(), Seen() as mode:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.ones(2, 6)).sum().backward()
                optimizer.step()
        seen.append(mode.names)
    assert seen[0] == seen[1]


# What the watcher replaces and adds is as before once it has ended, however it ended.


def functions() -> list[object]:
    """What the watcher replaces or adds, as it is now."""
    modules = torch.nn.modules.module
    return [
        torch.autograd.backward,
        torch.amp.GradScaler.scale,
        torch.amp.GradScaler.step,
        torch.optim.Optimizer.__init__,
        torch.compile,
        torch.jit._recursive.create_script_module,
        dict(_global_optimizer_pre_hooks),
        dict(_global_optimizer_post_hooks),
        dict(modules._global_forward_hooks),
        dict(modules._global_forward_pre_hooks),
    ]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[object]:
    """Every attribute of the modules and the optimizer, and the hooks of parameters."""
    attributes = [
        {name: dict(value) if isinstance(value, dict) else value for name, value in vars(x).items()}
        for x in (*model.modules(), optimizer)
    ]
    for entry in attributes:
        entry.pop("state", None)
    return [attributes, [p._backward_hooks for p in model.parameters()]]


@pytest.mark.parametrize("ending", ["finish", "failure"])
def test_nothing_is_left_afterwards(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.TransformerEncoderLayer(3, 1, 4), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()  # PyTorch wraps it with the first
    before, state = functions(), state_of(model, optimizer)

    def train() -> None:
        out = model(torch.randn(4, 2))
        out.sum().backward()
        optimizer.step()
        model(torch.randn(4, 2)).sum().backward()

    if ending == "finish":
        with watched(tmp_path):
            train()
            assert functions() != before
            assert state_of(model, optimizer) != state
    else:
        with pytest.raises(AssertionError, match="division"), watched(tmp_path) as watcher:
            monkeypatch.setattr(watcher.writer, "add_row", lambda *_: 1 / 0)
            train()
            assert functions() == before  # at once, not only at the end
    optimizer.zero_grad()
    assert functions() == before
    assert state_of(model, optimizer) == state
