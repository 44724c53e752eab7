"""Quantized models, with weights in objects of C++ classes, and frozen ones, without modules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization

import hookscope
from tests.sources.torchscript.examples import quietly

pytestmark = pytest.mark.filterwarnings("ignore")


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.relu = nn.Conv2d(3, 4, 3), nn.ReLU()
        self.fc = nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(self.quant(x)))
        return self.dequant(self.fc(torch.flatten(x, 1)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.cell = nn.LSTM(4, 6, 2), nn.GRUCell(6, 6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.fc(self.cell(y[0]))


Made = tuple[nn.Module, Tensor]


def static() -> Made:
    model, x = Convolution().eval(), torch.randn(2, 3, 8, 8)
    model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
    prepared = quantization.prepare(model)
    prepared(x)
    return quantization.convert(prepared), x


def dynamic() -> Made:
    kinds = {nn.LSTM, nn.Linear, nn.GRUCell}
    return quantization.quantize_dynamic(Recurrent().eval(), kinds), torch.randn(3, 2, 4)


def embedding() -> Made:
    model = nn.Sequential(nn.EmbeddingBag(10, 8, mode="sum")).eval()
    model.qconfig = quantization.float_qparams_weight_only_qconfig
    prepared = quantization.prepare(model)
    return quantization.convert(prepared), torch.tensor([[1, 2], [3, 4]])


def frozen(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.freeze(torch.jit.script(model).eval())


def scripted(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.script(model)


@pytest.mark.parametrize("make", [static, dynamic, embedding])
@pytest.mark.parametrize("save", [scripted, torch.jit.trace, frozen])
def test_a_quantized_model_gives_what_torchscript_gives(
    make: Callable[[], Made], save: Callable[..., Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = make()
    live = save(model, x)
    live.save(str(tmp_path / "net.pt"))
    module = hookscope.load_model(tmp_path / "net.pt").module
    assert torch.equal(module(x), live(x))
    assert torch.equal(copy.deepcopy(module)(x), live(x))
    found = hookscope.capture(tmp_path / "net.pt", input=x)
    with hookscope.record(live) as other:
        live(x)
    assert list(found) == list(other)
    if save is scripted:  # the methods that stand in for the forward of an LSTM are calls of it
        expected = hookscope.capture(model, input=x)
        assert list(found) == list(expected)
        for key in expected:
            assert torch.equal(expected[key].dequantize(), found[key].dequantize()), key


# Frozen files: the operators of the graph stand in for modules.


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)
    ).eval()


@pytest.fixture
def frozen_file(tmp_path: Path) -> Path:
    with quietly():
        torch.jit.freeze(torch.jit.script(model())).save(str(tmp_path / "frozen.pt"))
    return tmp_path / "frozen.pt"


def test_operators_are_modules_named_by_kind_and_order(frozen_file: Path) -> None:
    tree = hookscope.tree(frozen_file)
    names = [node.name for node in tree.modules]
    assert names[0] == "." and {"conv2d_1", "relu_1", "conv2d_2"} <= set(names)
    assert {node.name: node.type for node in tree.modules}["conv2d_2"] == "conv2d"


def test_weights_are_parameters_of_the_operator_that_uses_them(frozen_file: Path) -> None:
    module = hookscope.load_model(frozen_file).module
    weight = module.get_submodule("conv2d_2").weight
    assert torch.equal(weight, model()[3].weight)
    assert not weight.requires_grad


def test_values_and_gradients_are_those_of_the_model(frozen_file: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    eager = hookscope.grads(model(), layers=["3", "."], loss="sum", input=x, what=["output"])
    ours = hookscope.grads(
        frozen_file, layers=["conv2d_2", "."], loss="sum", input=x, what=["output"]
    )
    assert torch.allclose(ours["./input.0.grad"], eager["./input.0.grad"])
    assert torch.equal(ours["conv2d_2/output.grad"], eager["3/output.grad"])
    kept = hookscope.capture(frozen_file, layers=["conv2d_1"], input=x)
    with quietly():
        whole = torch.jit.load(frozen_file)(x)
    assert torch.equal(hookscope.capture(frozen_file, input=x)["./output"], whole)
    assert kept["conv2d_1/output"].min() < 0  # as it was before the ReLU worked in place


def test_it_is_said_that_no_modules_are_left(
    frozen_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="hookscope"):
        hookscope.load_model(frozen_file)
    assert any(str(frozen_file) in message and "conv2d_1" in message for message in caplog.messages)
