"""``diff --compile-b`` runs compiled modules, each of which is compared on equal inputs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from hookscope.model_analysis.diff.own_errors import relative_error
from tests.model_analysis.diff.planted_faults import build

SAMPLES = Path(__file__).resolve().parents[3] / "sample_models"
NET = """
import torch
from torch import nn

class Scale(nn.Module):
    def forward(self, x):
        return x * (1.001 if torch.compiler.is_compiling() else 1.0)

def net(*layers):
    return nn.Sequential(nn.Linear(8, 8), *layers or (nn.GELU(), Scale()), nn.Linear(8, 2))
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    """The spec of a model with a module that is scaled only where it is compiled."""
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path}/net.py:net"


def test_the_command_names_what_differs_when_it_is_compiled(run: Any, net: str) -> None:
    sides = ("diff", net, net, "--shape", "4x8")
    done = run(*sides, "--compile-b", "--floor", "float64")
    assert done.rc == 1, done.stderr
    first, echo = done.stdout.splitlines()[-2:]
    assert first.startswith("2 (Scale): own error 0.00100, ")
    assert echo == "The outputs of 2 later calls differ only because of it."
    assert run(*sides, "--compile-a").rc == 1  # also without --local
    assert run(*sides, "--compile-a", "--compile-b", "--local").rc == 0


def test_the_own_error_is_that_of_each_compiled_module_alone() -> None:
    torch.manual_seed(0)
    widths = (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88)  # more than PyTorch compiles of one class
    pairs = zip(widths, widths[1:], strict=False)
    net = nn.Sequential(*(part for m, n in pairs for part in (nn.Linear(m, n), nn.Softmax(-1))))
    x = torch.randn(4, 8)
    net.insert(1, nn.Dropout(0.5))
    expected = []
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        value = x
        for layer in net:
            state = torch.get_rng_state()
            output = layer(value)
            torch._dynamo.reset()
            torch.set_rng_state(state)
            compiled = torch.compile(copy.deepcopy(layer), options={"fallback_random": True})
            expected.append(relative_error(output, compiled(value)))
            value = output
    found = hookscope.diff(net, net, input=x, compile_b=True, local=True, train=True)
    assert isinstance(found, hookscope.LocalDiff)
    assert [error.own for error in found.errors] == [*expected, 0.0]
    assert any(expected) and found.same
    assert not any("forward" in vars(module) for module in net.modules())


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["resnet", "vit", "unet", "tagger", "llama", "bert", "t5"])
def test_a_model_that_is_compiled_has_no_fault(kind: str) -> None:
    a, inputs = build(kind)
    found = hookscope.diff(a, a, input=inputs, floor="float64", compile_b=True)
    assert found.same and found.faults == ()


class Failing(nn.Module):
    """A module that is not compiled: an operation has no compiled form."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("sides", "option", "message"),
    [
        (("digits.py:trained", "digits_scripted.pt"), "--compile-b", "B is a scripted model"),
        (("digits.onnx", "digits.py:trained"), "--compile-a", "A is an ONNX file"),
        (("five.safetensors", "five.safetensors"), "--compile-b", "A and B are captures"),
        (("digits.safetensors", "digits.py:trained"), "--compile-a", "has only weights"),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    refused: Any, sides: tuple[str, str], option: str, message: str
) -> None:
    said = refused("diff", *(f"{SAMPLES}/{side}" for side in sides), option)
    assert message in said and option in said


def test_a_module_that_is_compiled_already_is_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    for a, b in ((net, torch.compile(net)), (torch.compile(net), net)):
        with pytest.raises(RequestError, match="has a module that torch.compile has compiled"):
            hookscope.diff(a, b, shape=(1, 2), compile_b=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CXX": "no-such-compiler"}, "No working C++ compiler found"),
        ({"TORCH_COMPILE_DISABLE": "1"}, "it is switched off"),
    ],
)
def test_where_nothing_can_be_compiled_a_sentence_says_why(
    run_process: Any, net: str, environment: dict[str, str], reason: str
) -> None:
    raise NotImplementedError
