"""No command changes the tensors that it is given, whatever the model does to its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hookscope
from tests.oracle.by_hand import same_bits


class InPlace(nn.Module):
    """Works in place on what it is called with, as the first thing that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ReLU(inplace=True)
        self.last = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.25)
        out: Tensor = self.last(self.first(x))
        return out


def loss(output: Tensor, target: Any, input: Tensor) -> Tensor:
    return output.sum() + input.mul_(3).sum() * 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "capture": lambda net, x, folder: hookscope.capture(net, input=x, what="input,output"),
    "capture, verified": lambda net, x, folder: hookscope.capture(net, input=x, verify=True),
    "capture, limited": lambda net, x, folder: hookscope.capture(net, input=x, max_bytes=10**6),
    "capture, edited": lambda net, x, folder: hookscope.capture(net, input=x, edits="last=zero"),
    "grads": lambda net, x, folder: hookscope.grads(net, input=x, verify=True),
    "grads, own loss": lambda net, x, folder: hookscope.grads(net, input=x, loss=loss),
    "check": lambda net, x, folder: hookscope.check(net, input=x),
    "trace": lambda net, x, folder: hookscope.trace(net, input=x),
    "ablate": lambda net, x, folder: hookscope.ablate(net, input=x),
    "sweep": lambda net, x, folder: hookscope.sweep(net, input=x),
    "diff": lambda net, x, folder: hookscope.diff(net, net, input=x),
    "gradcheck": lambda net, x, folder: hookscope.gradcheck(net, input=x),
    "step": lambda net, x, folder: hookscope.step(net, input=x),
    "extract": lambda net, x, folder: hookscope.extract(
        net, folder / "out", input=TensorDataset(x), batch=2, workers=0
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_callers_tensor_keeps_its_values(command: str, tmp_path) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    COMMANDS[command](InPlace(), x, tmp_path)
    assert same_bits(x, kept)
    assert not x.requires_grad and x.grad is None


def test_record_passes_a_change_in_place_on_as_the_model_makes_it() -> None:
    x = torch.randn(4, 3)
    expected = (x - 0.25).relu()
    with hookscope.record(InPlace(), what="input,output", grads=True):
        InPlace()(x)
    assert same_bits(x, expected)
