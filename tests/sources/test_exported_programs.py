"""Programs of many kinds, exported, saved and opened: values and gradients of the model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import hookscope
from tests.sources.programs_exported import CASES, Case
from tests.sources.test_exported import by_hand

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
