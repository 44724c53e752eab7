"""Programs of many kinds, exported, saved and opened: values and gradients of the model.

Some have modules whose operators return their own input, which changes the exported graph.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import hookscope
from hookscope.sources.exported.exported_source import to_module
from tests.sources.programs_exported import CASES, Case
from tests.sources.test_exported import by_hand, check_agreement

pytestmark = pytest.mark.filterwarnings("ignore")


def exported(case: Case, way: str) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    model, args = case.make().eval(), copy.deepcopy(case.args)
    if way == "draft":
        return torch.export.draft_export(model, args, case.kwargs, **case.options)
    strict = way == "strict"
    return torch.export.export(model, args, case.kwargs, **case.options, strict=strict)


def check(name: str, way: str, folder: Path) -> None:
    case, file = CASES[name], folder / "net.pt2"
    torch.export.save(exported(case, way), file)
    torch.manual_seed(0)
    eager = case.make().eval()
    ours = hookscope.load_model(file).module
    expected, found = (run(copy.deepcopy(model), case) for model in (eager, ours))
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    assert alike(pytree.tree_leaves(found), pytree.tree_leaves(expected))
    theirs, hooked = (by_hand(m, *copy.deepcopy(case.args), **case.kwargs) for m in (eager, ours))
    lost = {key for key in theirs if key.partition(".grad")[0] in case.missing}
    assert hooked.keys() == theirs.keys() - lost
    assert [key for key in hooked if not alike(hooked[key], theirs[key])] == []
    hookscope.capture(file)


def run(model: torch.nn.Module, case: Case) -> Any:
    return model(*copy.deepcopy(case.args), **case.kwargs)


def alike(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


LONG = {"Scans", "Repeats", "MapsRows"}  # whose export takes PyTorch many seconds


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] if name in LONG else []) for name in CASES],
)
def test_an_exported_program_does_what_its_model_does(name: str, tmp_path: Path) -> None:
    check(name, "plain", tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["strict", "draft"])
@pytest.mark.parametrize("name", CASES)
def test_so_it_does_exported_in_another_way(name: str, way: str, tmp_path: Path) -> None:
    if (name, way) == ("UnderAutocast", "strict"):
        pytest.skip("PyTorch 2.15 cannot run this program either")
    check(name, way, tmp_path)


class Norm(nn.Module):
    """Casts to the dtype that its input has already, as an RMSNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6))


class TwiceCast(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.type_as(x).to(torch.float32))


class Block(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm, self.inner = norm(), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.inner(self.norm(x)))


class Net(nn.Module):
    """Blocks with a residual around a norm, whose inputs are results of the model too."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block(norm), Block(norm)])
        self.last = norm()

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = self.first(x)
        between = []
        for block in self.blocks:
            between.append(x)
            x = block(x)
        return self.last(x), between


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.linear(x).chunk(2, -1))


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.halves = Halves()

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.halves(x)
        return first * second


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("norm", [Norm, TwiceCast])
def test_a_residual_around_a_norm_is_no_output_of_the_norm(
    norm: type[nn.Module], strict: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = Net(norm).eval(), torch.randn(2, 4)
    program = torch.export.export(model, (x,), strict=strict)
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = hookscope.load_model(tmp_path / "net.pt2").module
    expected, found = model(x), loaded(x)
    assert torch.equal(expected[0], found[0])
    assert all(map(torch.equal, expected[1], found[1]))
    check_agreement(model, copy.deepcopy(loaded), x)
    with hookscope.record(model, grads=True) as eager:
        model(x)[0].sum().backward()
    with hookscope.record(loaded, grads=True) as ours:
        loaded(x)[0].sum().backward()
    assert [key for key in eager if key.startswith("blocks")] == [
        key for key in ours if key.startswith("blocks")
    ]


def test_a_cast_that_is_a_module_s_only_result_stays_its_result() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).eval()
    check_agreement(
        model, to_module(torch.export.export(model, (torch.ones(1, 4),))), torch.ones(1, 4)
    )


def test_several_results_of_a_module_are_recorded(tmp_path: Path) -> None:
    """A graph holds them in a list that refuses to be put together again."""
    model, x = Uses(), torch.randn(2, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "net.pt2")
    shot = hookscope.capture(tmp_path / "net.pt2", input=x)
    eager = hookscope.capture(model, input=x)
    assert list(shot) == list(eager)
    assert all(torch.equal(shot[key], eager[key]) for key in eager)
    assert hookscope.grads(tmp_path / "net.pt2", input=x, loss="sum").keys() >= {
        "halves/output.1.grad"
    }
