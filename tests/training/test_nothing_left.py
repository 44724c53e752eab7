"""What the watcher replaces and adds is as before once it has ended, however it ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tests.training.measured_by_hand import watched


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
        with pytest.raises(AssertionError, match="planted"), watched(tmp_path) as watcher:
            monkeypatch.setattr(watcher.writer, "add_row", fail)
            train()
            assert functions() == before  # at once, not only at the end
    optimizer.zero_grad()
    assert functions() == before
    assert state_of(model, optimizer) == state


def fail(*_: object) -> None:
    raise RuntimeError("planted")
