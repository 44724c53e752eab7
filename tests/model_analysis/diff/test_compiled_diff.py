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
