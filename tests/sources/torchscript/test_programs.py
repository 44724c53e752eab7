"""Every example, opened as ordinary modules, does what the file does when PyTorch runs it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.tensors.nested import walk
from tests.oracle.by_hand import same_bits
from tests.sources.torchscript.examples import Example, difference, outcome, quietly
from tests.sources.torchscript.tables import EXAMPLES, opened, write

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def unoptimized() -> Iterator[None]:
    """PyTorch runs a graph as it is, and computes what stands there twice twice."""
    with torch.jit.optimized_execution(False):
        yield


ALL = [(table, name) for table, examples in EXAMPLES.items() for name in examples]
OF_MODULES = [one for one in ALL if one[0] in ("modules", "library")]


def hold_equal(modules: tuple[nn.Module, ...], example: Example, most: int | None = None) -> None:
    """Demand that the last of the modules does what the first one does."""
    for call in example.calls[:most]:
        results = [outcome(example.of(module), call) for module in modules]
        assert not difference(results[0], results[-1]), f"called with {call}"


@pytest.mark.parametrize(("table", "name"), ALL)
def test_it_gives_what_torchscript_gives(table: str, name: str) -> None:
    hold_equal(opened(table), EXAMPLES[table][name])


@pytest.mark.parametrize("name", EXAMPLES["expressions"])
def test_it_gives_the_same_where_operators_are_no_modules(name: str) -> None:
    """A model that has a module inside keeps its operators to itself."""
    pair = opened("expressions", beside=True)
    assert [name for name, _ in pair[1].named_modules()] == ["", "beside"]
    hold_equal(pair, EXAMPLES["expressions"][name])


@pytest.mark.parametrize(("table", "name"), OF_MODULES)
def test_it_gives_the_same_in_training(table: str, name: str) -> None:
    pair, example = opened(table), EXAMPLES[table][name]
    children = [getattr(module, name) for module in pair]
    for child in children:
        child.train()
    hold_equal(pair, example)
    for child in children:
        child.eval()
    hold_equal(pair, example)
    theirs, ours = (child.state_dict() for child in children)
    assert [key for key in ours if key in theirs] == list(theirs)
    assert all(same_bits(theirs[key], ours[key]) for key in theirs)


@pytest.mark.parametrize("table", EXAMPLES)
def test_a_deep_copy_does_the_same(table: str) -> None:
    theirs, ours = opened(table)
    copied = copy.deepcopy(ours)
    for example in EXAMPLES[table].values():
        hold_equal((theirs, ours, copied), example, most=1)


def with_gradients(value: Any) -> Any:
    """Copies of the arguments in which every float tensor wants a gradient."""
    found = copy.deepcopy(value)
    for _, part in walk(found):
        if part.is_floating_point():
            part.requires_grad_(True)
    return found


def gradients(whole: nn.Module, example: Example) -> list[Tensor | None] | None:
    """Of the sum of all results of the first call: for the parameters, then for the inputs."""
    given = with_gradients(example.calls[0])
    torch.manual_seed(7)
    with quietly():
        parts = [part for _, part in walk(example.of(whole)(*given)) if part.requires_grad]
    parameters = getattr(whole, example.module).parameters() if example.module else ()
    wanted = [*parameters, *(part for _, part in walk(given))]
    wanted = [tensor for tensor in wanted if tensor.requires_grad]
    if not parts or not wanted:
        return None
    total = torch.stack(
        [(torch.view_as_real(p) if p.is_complex() else p).sum().double() for p in parts]
    ).sum()
    return list(torch.autograd.grad(total, wanted, allow_unused=True))


DIFFERENTIABLE = [
    (table, name)
    for table, name in ALL
    if (table, name) in OF_MODULES
    or any(tensor.is_floating_point() for _, tensor in walk(EXAMPLES[table][name].calls[0]))
]


@pytest.mark.parametrize(("table", "name"), DIFFERENTIABLE)
def test_gradients_are_those_of_torchscript(table: str, name: str) -> None:
    found: list[Any] = []
    for module in opened(table):
        try:
            found.append(gradients(module, EXAMPLES[table][name]))
        except Exception:  # a leaf that is changed in place, for one
            found.append("refused")
    theirs, ours = found
    if not isinstance(theirs, list):
        assert ours == theirs
        return
    assert len(ours) == len(theirs)
    for one, other in zip(theirs, ours, strict=True):
        assert (one is None) == (other is None)
        assert one is None or same_bits(one, other)


def plain(value: object) -> bool:
    """Whether a value can be sent to a process that knows no classes of ours."""
    if isinstance(value, tuple | list):
        return type(value) in (tuple, list) and all(map(plain, value))
    if isinstance(value, dict):
        return all(map(plain, value.values()))
    return value is None or isinstance(value, int | float | complex | str | torch.Tensor)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_process_without_the_classes_gives_the_same(tmp_path: Path) -> None:
    sent = {
        table: {
            name: (example.module, example.method, example.calls)
            for name, example in examples.items()
            if example.fresh and all(map(plain, example.calls))
        }
        for table, examples in EXAMPLES.items()
    }
    assert sum(map(len, sent.values())) > 200
    for table in EXAMPLES:
        write(table, tmp_path / f"{table}.pt")
    torch.save(sent, tmp_path / "examples.pt")
    done = subprocess.run(
        [sys.executable, "-m", "tests.sources.torchscript.compare_files", str(tmp_path)],
        cwd=Path(hookscope.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}
