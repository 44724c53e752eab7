"""``diff --compile-b`` runs compiled modules, each of which is compared on equal inputs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import EnvironmentFault, RequestError
from hookscope.model_analysis.diff.tensor_errors import relative_error
from hookscope.results.local_diff import LocalDiff
from tests.model_analysis.diff.planted_faults import build

SAMPLES = Path(__file__).resolve().parents[3] / "sample_models"
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


@pytest.mark.sampled(3)
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


# The command


@pytest.fixture
def net(tmp_path: Path) -> str:
    """The spec of a model with a module that is scaled only where it is compiled."""
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path}/net.py:net"


@pytest.mark.exhaustive
def test_the_command_compiles_one_of_two_models_with_equal_weights(run: Any, net: str) -> None:
    done = run("diff", net, net, "--shape", "4x8", "--compile-b", "--floor", "float64")
    assert done.rc == 1, done.stderr
    worst, other, _ = done.stdout.splitlines()[-3:]
    assert worst.startswith("2 (Biased): own error 0.00515, ")
    assert other == "Other modules with a fault of their own: 1."


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (
            {"CXX": "no-such-compiler", "TORCH_COMPILE_DISABLE": "0"},
            "No working C++ compiler found",
        ),
        ({"TORCH_COMPILE_DISABLE": "1"}, "it is switched off"),
    ],
)
def test_where_nothing_can_be_compiled_a_sentence_says_why(
    refused: Any, net: str, tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    said = refused("diff", net, net, "--shape", "4x8", "--compile-b", env=cache | environment)
    assert "torch.compile does not work here: " in said and reason in said
    assert "It needs a C++ compiler" in said


def test_a_process_that_runs_all_uncompiled_is_refused() -> None:
    with torch.compiler.set_stance("force_eager"), pytest.raises(EnvironmentFault) as caught:
        hookscope.diff(nn.Linear(2, 2), nn.Linear(2, 2), shape=(1, 2), compile_a=True)
    assert "it is switched off" in caught.value.message


_NOT_PYTHON = "compiles modules of Python code, and {0} is a scripted, exported or ONNX file"


@pytest.mark.parametrize(
    ("sides", "option", "reason"),
    [
        (("digits.py:trained", "digits_scripted.pt"), "--compile-b", _NOT_PYTHON.format("B")),
        (("digits_exported.pt2", "digits.py:trained"), "--compile-a", _NOT_PYTHON.format("A")),
        (("digits.onnx", "digits.py:trained"), "--compile-a", _NOT_PYTHON.format("A")),
        (("five.safetensors", "five.safetensors"), "--compile-b", "A and B are captures"),
        (("digits.py:trained", "digits.safetensors"), "--compile-a", "B has only weights"),
    ],
)
def test_what_is_not_compiled_is_refused(
    refused: Any, sides: tuple[str, str], option: str, reason: str
) -> None:
    said = refused("diff", *(f"{SAMPLES}/{side}" for side in sides), option)
    assert f"{option} " in said and reason in said


def test_a_live_model_that_is_scripted_or_compiled_already_is_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    for a, b in ((net, torch.compile(net)), (torch.compile(net), net)):
        with pytest.raises(RequestError, match=r"torch\.compile has compiled already"):
            hookscope.diff(a, b, shape=(1, 2), compile_b=True)
    with pytest.raises(RequestError, match="compile_b compiles modules of Python code"):
        program = torch.export.export(net, (torch.ones(1, 2),))
        hookscope.diff(net, program, shape=(1, 2), compile_b=True)
