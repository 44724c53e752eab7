"""Every example, opened as ordinary modules, does what the file does when PyTorch runs it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.tensors.nested import walk
from tests.oracle.by_hand import same_bits
from tests.sources.torchscript.examples import Example, difference, outcome, quietly, saved
from tests.sources.torchscript.programs_library import LIBRARY
from tests.sources.torchscript.programs_modules import MODULES
from tests.sources.torchscript.programs_tensors import TENSORS
from tests.sources.torchscript.tables import EXAMPLES

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated")
Pair = tuple[nn.Module, nn.Module]


def both(example: Example, path: Path) -> Pair:
    """The file of an example as PyTorch opens it, and as hookscope does."""
    file = saved(example, path / "model.pt")
    with quietly():
        theirs = torch.jit.load(file)
    return theirs.eval(), hookscope.load_model(file).module


def called(module: nn.Module, example: Example) -> Any:
    """What is called: the module itself where that is its forward."""
    return module if example.method == "forward" else getattr(module, example.method)


def hold_equal(pair: Pair, example: Example) -> None:
    for call in example.calls:
        results = [outcome(called(module, example), call) for module in pair]
        assert not difference(*results), f"called with {call}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_gives_what_torchscript_gives(name: str, tmp_path: Path) -> None:
    hold_equal(both(EXAMPLES[name], tmp_path), EXAMPLES[name])


@pytest.mark.parametrize("name", TENSORS.examples)
def test_it_gives_the_same_where_operators_are_no_modules(name: str, tmp_path: Path) -> None:
    """A model that has a module inside keeps its operators to itself."""
    example = TENSORS.examples[name]

    def with_a_module_beside() -> nn.Module:
        module = example.make()
        module.add_module("beside", nn.Identity())
        return module

    pair = both(Example(with_a_module_beside, example.calls), tmp_path)
    assert [name for name, _ in pair[1].named_modules()] == ["", "beside"]
    hold_equal(pair, example)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*MODULES.examples, *LIBRARY.examples])
def test_it_gives_the_same_in_training(name: str, tmp_path: Path) -> None:
    pair = both(EXAMPLES[name], tmp_path)
    for module in pair:
        module.train()
    hold_equal(pair, EXAMPLES[name])
    for module in pair:
        module.eval()
    hold_equal(pair, EXAMPLES[name])
    theirs, ours = (module.state_dict() for module in pair)
    assert [key for key in ours if key in theirs] == list(theirs)
    assert all(same_bits(theirs[key], ours[key]) for key in theirs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*MODULES.examples, *LIBRARY.examples])
def test_a_deep_copy_does_the_same(name: str, tmp_path: Path) -> None:
    theirs, ours = both(EXAMPLES[name], tmp_path)
    copied = copy.deepcopy(ours)
    hold_equal((theirs, copied), EXAMPLES[name])


def with_gradients(value: Any) -> Any:
    """Copies of the arguments in which every float tensor wants a gradient."""
    found = copy.deepcopy(value)
    for _, part in walk(found):
        if part.is_floating_point():
            part.requires_grad_(True)
    return found


def gradients(module: nn.Module, call: tuple[Any, ...]) -> list[Tensor | None] | None:
    """Of the sum of all results: for the parameters, then for the inputs."""
    given = with_gradients(call)
    torch.manual_seed(7)
    with quietly():
        parts = [part for _, part in walk(module(*given)) if part.requires_grad]
    wanted = [*module.parameters(), *(part for _, part in walk(given))]
    wanted = [tensor for tensor in wanted if tensor.requires_grad]
    if not parts or not wanted:
        return None
    total = torch.stack(
        [
            torch.view_as_real(p).sum().double() if p.is_complex() else p.double().sum()
            for p in parts
        ]
    ).sum()
    return list(torch.autograd.grad(total, wanted, allow_unused=True))


DIFFERENTIABLE = [
    *MODULES.examples,
    *LIBRARY.examples,
    "loop_carries_tensors",
    "operators",
    "divisions",
    "products",
    "reductions",
    "shapes_changed",
    "joined",
    "functional",
    "losses",
    "complex_tensors",
    "half_precision",
    "fork_and_wait",
    "ForkOfAMethod",
    "free_functions",
    "indexed",
    "indexed_by_tensors",
    "InterfaceSubmodule",
    "InterfaceByRunTimeIndex",
    "EnumPassedToASubmodule",
    "InstanceOfManyAttributes",
    "optional_tensor",
    "tensors_decide",
]


# PyTorch computes what stands there twice once, so that its gradients are added in another order.
DIFFERENTIABLE.remove("Sequentials")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_torchscript(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    if example.method != "forward":
        pytest.skip("it has another method")
    found = []
    for module in both(example, tmp_path):
        try:
            found.append(gradients(module, example.calls[0]))
        except RuntimeError as error:  # a leaf that is changed in place, for one
            found.append(type(error))
    theirs, ours = found
    if not isinstance(theirs, list):
        assert ours is theirs
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


def compared(examples: dict[str, Example], folder: Path) -> dict[str, str]:
    calls = {}
    for name, example in examples.items():
        saved(example, folder / f"{name}.pt")
        calls[name] = (example.method, example.calls)
    torch.save(calls, folder / "calls.pt")
    done = subprocess.run(
        [sys.executable, "-m", "tests.sources.torchscript.compare_files", str(folder)],
        cwd=Path(hookscope.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_process_without_the_classes_gives_the_same(tmp_path: Path) -> None:
    wanted = {
        name: example
        for name, example in EXAMPLES.items()
        if example.fresh and all(map(plain, example.calls))
    }
    assert len(wanted) > 250
    assert compared(wanted, tmp_path) == {}
