"""``diff`` with a compiled or a quantized model: each module is compared on equal inputs."""

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
from hookscope.errors import EnvironmentFault, RequestError
from hookscope.model_analysis.diff.tensor_errors import relative_error
from hookscope.results.local_diff import LocalDiff
from tests.model_analysis.diff.planted_faults import build, int4

NET = """
import torch
from torch import nn

class Biased(nn.Linear):
    def forward(self, x):
        bias = 0.01 * self.bias if torch.compiler.is_compiling() else None
        return nn.functional.linear(x, self.weight, bias)

def net(*widths):
    widths = widths or (8, 8, 2)
    return nn.Sequential(nn.Dropout(0.5), *map(Biased, widths, widths[1:])).eval()
"""


@pytest.mark.exhaustive  # PyTorch compiles for seconds
@pytest.mark.parametrize(("sides", "count"), [("a", 1), ("b", 9), ("ab", 1)])
def test_what_is_wrong_when_it_is_compiled_is_named(sides: str, count: int) -> None:
    names: dict[str, Any] = {}
    exec(NET, names)
    torch.manual_seed(0)
    net = names["net"](*range(8, 9 + count))  # PyTorch compiles eight variants of one function
    options: dict[str, Any] = {f"compile_{side}": True for side in sides}
    found = hookscope.diff(net, net, shape=(4, 8), floor="float64", train=True, **options)
    assert isinstance(found, LocalDiff)
    wrong = [] if len(sides) == 2 else [str(number) for number in range(1, 1 + count)]
    assert sorted(error.module for error in found.faults) == sorted(wrong)
    assert hookscope.diff(net, net, shape=(4, 8), **options).same is not bool(wrong)
    assert not any("forward" in vars(module) for module in net.modules())


@pytest.mark.exhaustive
def test_the_own_error_is_that_of_each_compiled_module_alone() -> None:
    torch.manual_seed(0)
    value = torch.randn(4, 8)
    net = nn.Sequential(
        nn.Softmax(-1), nn.Linear(8, 9), nn.GELU(), nn.LayerNorm(9), nn.LogSoftmax(1)
    )
    found = hookscope.diff(net, net, input=value, compile_b=True, local=True)
    assert isinstance(found, LocalDiff)
    expected = []
    with torch.no_grad():
        for layer in net:
            other = torch.compile(copy.deepcopy(layer))(value)
            value = layer(value)
            expected.append(relative_error(value, other))
    assert [error.own for error in found.errors] == [*expected, 0.0]
    assert sum(map(bool, expected)) >= 3 and found.same


def test_a_function_of_the_user_in_place_of_forward_is_compiled_and_kept() -> None:
    a, b = nn.Sequential(nn.GELU()), nn.Sequential(nn.GELU())
    vars(b[0])["forward"] = wrong = lambda x: 1.001 * nn.functional.gelu(x)
    found = hookscope.diff(a, b, shape=(4, 8), compile_b=True, local=True)
    assert isinstance(found, LocalDiff)
    assert found.faults[0].own == pytest.approx(0.001, rel=1e-3)
    assert b[0].forward is wrong


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["resnet", "vit", "unet", "tagger", "llama", "bert", "t5"])
def test_a_model_that_is_compiled_has_no_fault(kind: str) -> None:
    a, inputs = build(kind)
    found = hookscope.diff(a, a, input=inputs, floor="float64", compile_b=True)
    assert isinstance(found, LocalDiff)
    assert found.same and any(error.own for error in found.errors) == (kind != "tagger")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "environment",
    [{"CXX": "no-such-compiler", "TORCH_COMPILE_DISABLE": "0"}, {"TORCH_COMPILE_DISABLE": "1"}],
    ids=["no-compiler", "switched-off"],
)
def test_where_nothing_can_be_compiled_it_is_refused(
    refused: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "net.py").write_text(NET)
    net = f"{tmp_path}/net.py:net"
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    said = refused("diff", net, net, "--shape", "4x8", "--compile-b", env=cache | environment)
    assert "torch.compile does not work" in said
    assert ("switched off" in said) == ("CXX" not in environment)


def test_a_process_that_runs_all_uncompiled_is_refused() -> None:
    with (
        torch.compiler.set_stance("force_eager"),
        pytest.raises(EnvironmentFault, match="switched off"),
    ):
        hookscope.diff(nn.Linear(2, 2), nn.Linear(2, 2), shape=(1, 2), compile_a=True)


def test_a_live_model_that_is_exported_or_compiled_already_is_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    program = torch.export.export(net, (torch.ones(1, 2),))
    compiled = torch.compile(net)
    for a, b in ((net, compiled), (compiled, net), (net, program)):
        with pytest.raises(RequestError, match="Python" if b is program else "compiled already"):
            hookscope.diff(a, b, shape=(1, 2), compile_b=True)


# Quantized models: each layer's own error, and the layer that is broken


INPUT = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


class Quantizable(nn.Module):
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


@pytest.fixture
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
    case: str, tmp_path: Path, quiet: None
) -> None:
    quantize, broken, blamed, layers = CASES[case]
    torch.manual_seed(0)
    net = Quantizable().eval()
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


@pytest.mark.usefixtures("quiet")
def test_the_own_error_of_a_quantized_layer_is_that_of_a_call_on_the_inputs_of_the_other() -> None:
    torch.manual_seed(0)
    net = Quantizable().eval()
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
