"""``diff --local`` with a quantized model: each layer's own error, and the layer that is broken."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnxruntime import quantization
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, QuantStub

import hookscope
from hookscope.model_analysis.diff.tensor_errors import relative_error
from hookscope.results.local_diff import LocalDiff
from tests.model_analysis.diff.planted_faults import int4

INPUT = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Layers that quantizers replace, between stubs that do nothing unless they are converted."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.act = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()
        self.conv2, self.pool = nn.Conv2d(8, 8, 3, padding=1), nn.MaxPool2d(4)
        self.fc, self.head = nn.Linear(128, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.conv2(self.act(self.conv(self.quant(x)))))
        return self.dequant(self.head(self.fc(y.flatten(1))))  # type: ignore[no-any-return]


def _dynamic(net: Any, folder: Path) -> Any:
    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear})


def _static(net: Any, folder: Path) -> Any:
    net.qconfig = torch.ao.quantization.get_default_qconfig("x86")
    net = torch.ao.quantization.prepare(net)
    net(INPUT)
    return torch.ao.quantization.convert(net)


class Calibration:
    """The input of the tests, once."""

    def __init__(self, name: str) -> None:
        self.left = iter([{name: INPUT.numpy()}])

    def get_next(self) -> Any:
        """Return the next batch; None after the last."""
        return next(self.left, None)


def _file(how: str, dynamo: bool) -> Callable[[Any, Path], str]:
    def quantize(net: Any, folder: Path) -> str:
        plain, quantized = str(folder / "plain.onnx"), str(folder / "quantized.onnx")
        torch.onnx.export(net, (INPUT,), plain, dynamo=dynamo)
        if how == "dynamic":
            # With 8 bits, sums saturate on processors without instructions for them.
            quantization.quantize_dynamic(plain, quantized, reduce_range=True)
        else:
            reader = Calibration(onnx.load(plain).graph.input[0].name)
            layout = quantization.QuantFormat[how]
            quantization.quantize_static(plain, quantized, reader, quant_format=layout)
        return quantized

    return quantize


# How B is made, the layer whose weights are rounded to 4 bits, the one that must come first, and
# those that have an error without that. Operators have integers between the layers.
CASES: dict[str, tuple[Callable[[Any, Path], Any], str, str, set[str]]] = {
    "dynamic": (_dynamic, "fc", "fc", {"fc", "head"}),
    "static": (_static, "conv2", "conv2", {"quant", "conv", "conv2", "fc", "head"}),
    "qdq": (_file("QDQ", True), "conv2", "conv2", {"conv", "conv2", "fc", "head"}),
    "qdq, older exporter": (_file("QDQ", False), "conv2", "conv2", {"conv", "conv2", "fc", "head"}),
    "operators": (_file("QOperator", False), "head", ".", {"."}),
    "dynamic file": (_file("dynamic", False), "conv2", "conv2", {"conv", "conv2", "head"}),
}
_QUICK = ("dynamic", "static", "qdq, older exporter")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Quantization of torch, and the older exporter, are deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if c in _QUICK else [pytest.mark.exhaustive]) for c in CASES],
)
def test_int8_is_the_origin_of_small_errors_and_a_layer_of_four_bits_comes_first(
    case: str, tmp_path: Path
) -> None:
    quantize, broken, blamed, layers = CASES[case]
    torch.manual_seed(0)
    net = Net().eval()
    found = hookscope.diff(net, quantize(copy.deepcopy(net), tmp_path), input=INPUT, local=True)
    assert isinstance(found, LocalDiff) and not found.same
    assert layers <= {error.module for error in found.faults}
    assert all(0 < error.own < 0.03 for error in found.faults if error.own)
    other = copy.deepcopy(net)
    layer: Any = other.get_submodule(broken)
    layer.weight.data = int4(layer.weight.data.flatten(1)).view_as(layer.weight)
    found = hookscope.diff(net, quantize(other, tmp_path), input=INPUT, local=True)
    assert isinstance(found, LocalDiff) and not found.floor
    assert found.faults[0].module == blamed
    sizes = [error.own or 0.0 for error in found.faults]
    assert sizes[0] > 1.5 * max(sizes[1:], default=0.0)
    codes = [error for error in found.errors if error.reason]
    assert all(error.own is None and error.accumulated is None for error in codes)
    assert bool(codes) == (case in ("operators", "dynamic file"))


def test_the_own_error_of_a_quantized_layer_is_that_of_a_call_on_the_inputs_of_the_other() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    static = _static(copy.deepcopy(net), Path())
    found = hookscope.diff(net, static, input=INPUT, local=True)
    assert isinstance(found, LocalDiff)
    conv: Any = static.get_submodule("conv2")
    with torch.no_grad():
        value = net.act(net.conv(INPUT))
        grid: Any = static.get_submodule("conv")
        given = torch.quantize_per_tensor(value, grid.scale, grid.zero_point, torch.quint8)
        expected = relative_error(net.conv2(value), conv(given))
    [error] = [error for error in found.errors if error.module == "conv2"]
    assert error.own == pytest.approx(expected, rel=1e-9)
    assert found.errors[-1].own == 0.0  # what is passed on is not rounded again
