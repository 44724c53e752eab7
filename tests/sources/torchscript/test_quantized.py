"""Quantized models, whose packed weights are objects of classes written in C++."""

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


@pytest.mark.parametrize("make", [static, dynamic, embedding])
@pytest.mark.parametrize(
    "save", [lambda model, x: torch.jit.script(model), torch.jit.trace, frozen]
)
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
    shot = hookscope.capture(tmp_path / "net.pt", input=x)
    with hookscope.record(live) as other:
        live(x)
    assert list(shot) == list(other)


@pytest.mark.parametrize("make", [static, dynamic, embedding])
def test_a_scripted_quantized_model_has_the_keys_and_values_of_the_original(
    make: Callable[[], Made], tmp_path: Path
) -> None:
    """The methods that stand in for the ``forward`` of an LSTM are calls of it."""
    torch.manual_seed(0)
    model, x = make()
    with quietly():
        torch.jit.script(model).save(str(tmp_path / "net.pt"))
    expected = hookscope.capture(model, input=x)
    found = hookscope.capture(tmp_path / "net.pt", input=x)
    assert list(found) == list(expected)
    for key in expected:
        one, other = expected[key], found[key]
        assert torch.equal(one.dequantize(), other.dequantize()), key
