"""Frozen files: no module is left inside, and the operators of the graph stand in for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hookscope
from hookscope import load_model as load
from tests.sources.torchscript.examples import quietly


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)
    ).eval()


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    with quietly():
        torch.jit.freeze(torch.jit.script(model())).save(str(tmp_path / "frozen.pt"))
    return tmp_path / "frozen.pt"


def test_operators_are_modules_named_by_kind_and_order(frozen: Path) -> None:
    tree = hookscope.tree(frozen)
    names = [node.name for node in tree.modules]
    assert names[0] == "." and {"conv2d_1", "relu_1", "conv2d_2"} <= set(names)
    assert {node.name: node.type for node in tree.modules}["conv2d_2"] == "conv2d"


def test_weights_are_parameters_of_the_operator_that_uses_them(frozen: Path) -> None:
    module = hookscope.load_model(frozen).module
    weight = module.get_submodule("conv2d_2").weight
    assert torch.equal(weight, model()[3].weight)
    assert not weight.requires_grad


def test_values_and_gradients_are_those_of_the_model(frozen: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    eager = hookscope.grads(model(), layers=["3", "."], loss="sum", input=x, what=["output"])
    ours = hookscope.grads(frozen, layers=["conv2d_2", "."], loss="sum", input=x, what=["output"])
    assert torch.allclose(ours["./input.0.grad"], eager["./input.0.grad"])
    assert torch.equal(ours["conv2d_2/output.grad"], eager["3/output.grad"])
    kept = hookscope.capture(frozen, layers=["conv2d_1"], input=x)
    with quietly():
        whole = torch.jit.load(frozen)(x)
    assert torch.equal(hookscope.capture(frozen, input=x)["./output"], whole)
    assert kept["conv2d_1/output"].min() < 0  # as it was before the ReLU worked in place


def test_it_is_said_that_no_modules_are_left(
    frozen: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="hookscope"):
        load(frozen)
    assert any("contains no modules" in message for message in caplog.messages)
