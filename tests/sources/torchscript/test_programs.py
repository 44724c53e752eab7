"""The examples, opened as ordinary modules, do what their files do when PyTorch runs them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.operators import FAST
from hookscope.tensors.nested import walk
from tests.oracle.by_hand import same_bits
from tests.sources.torchscript.examples import Example, difference, outcome, quietly
from tests.sources.torchscript.tables import EXAMPLES, both, opened, write

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def unoptimized() -> Iterator[None]:
    """PyTorch runs a graph as it is, and computes what stands there twice twice."""
    with torch.jit.optimized_execution(False):
        yield


def disagreements(
    examples: Mapping[str, Example], *modules: nn.Module, most: int | None = None
) -> list[str]:
    """Where modules do not do what the first of them does, in the first calls of each example."""
    found = []
    for name, example in examples.items():
        for call in example.calls[:most]:
            first, *others = [outcome(example.of(module), call) for module in modules]
            texts = filter(None, (difference(first, other) for other in others))
            found += [f"{name} called with {call}: {text}" for text in texts]
    return found


@pytest.mark.parametrize("table", EXAMPLES)
def test_examples_do_what_torchscript_does(table: str, tmp_path: Path) -> None:
    theirs, ours = opened(table, tmp_path)
    assert disagreements(EXAMPLES[table], theirs, ours) == []
    if table in ("modules", "traced"):
        assert disagreements(EXAMPLES[table], theirs, ours, copy.deepcopy(ours), most=1) == []


def test_operators_that_are_no_modules_do_what_torchscript_does(tmp_path: Path) -> None:
    """A model that has a module inside keeps its operators to itself."""
    theirs, ours = opened("expressions", tmp_path, beside=True)
    assert [name for name, _ in ours.named_modules()] == ["", "beside"]
    assert disagreements(EXAMPLES["expressions"], theirs, ours, most=1) == []


def test_common_operators_are_functions_in_c() -> None:
    """One that a release of PyTorch no longer has would run at half the speed, and no test fail."""
    names = {operator.partition("::")[2] for operator in FAST}
    assert [name for name in names if private.fast_function(name) is None] == []


@pytest.mark.parametrize("table", ["modules", "traced"])
def test_examples_do_what_torchscript_does_in_training(table: str, tmp_path: Path) -> None:
    theirs, ours = opened(table, tmp_path)
    for training in (True, False):
        theirs.train(training)
        ours.train(training)
        assert disagreements(EXAMPLES[table], theirs, ours) == []
    expected, found = theirs.state_dict(), ours.state_dict()
    assert [key for key in found if key in expected] == list(expected)
    assert [key for key in expected if not same_bits(expected[key], found[key])] == []


def gradients(whole: nn.Module, example: Example) -> list[Tensor | None]:
    """Of the sum of all results of the first call: for the parameters, then for the inputs."""
    given = copy.deepcopy(example.calls[0])
    for _, tensor in walk(given):
        if tensor.is_floating_point():
            tensor.requires_grad_(True)
    torch.manual_seed(7)
    with quietly():
        parts = [part for _, part in walk(example.of(whole)(*given)) if part.requires_grad]
    parameters = getattr(whole, example.module).parameters() if example.module else ()
    wanted = [*parameters, *(tensor for _, tensor in walk(given))]
    wanted = [tensor for tensor in wanted if tensor.requires_grad]
    if not parts or not wanted:
        return []
    parts = [(torch.view_as_real(p) if p.is_complex() else p).sum().double() for p in parts]
    return list(torch.autograd.grad(torch.stack(parts).sum(), wanted, allow_unused=True))


@pytest.mark.parametrize("table", ["expressions", "modules", "traced"])
def test_gradients_are_those_of_torchscript(table: str, tmp_path: Path) -> None:
    pair, compared = opened(table, tmp_path), 0
    for name, example in EXAMPLES[table].items():
        # A leaf that is changed in place has no gradient, for one.
        theirs, ours = (outcome(partial(gradients, whole, example), ()) for whole in pair)
        assert (theirs.error is None) == (ours.error is None), name
        if theirs.error is None:
            assert len(theirs.result) == len(ours.result), name
            for one, other in zip(theirs.result, ours.result, strict=True):
                assert (one is None) == (other is None), name
                assert one is None or same_bits(one, other), name
                compared += one is not None
    assert compared > 8


def plain(value: object) -> bool:
    """Whether a value can be sent to a process that knows no classes of ours."""
    if isinstance(value, tuple | list):
        return type(value) in (tuple, list) and all(map(plain, value))
    if isinstance(value, dict):
        return all(map(plain, value.values()))
    return value is None or isinstance(value, int | float | complex | str | torch.Tensor)


@pytest.mark.parametrize("table", ["types", "classes", "modules"])
def test_a_process_without_the_classes_gives_the_same(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No class that an example was made from can be imported, or is known to PyTorch."""
    path = write(table, tmp_path / "model.pt")
    for name in [name for name in sys.modules if ".torchscript.programs_" in name]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(torch.jit._state, "_name_to_pyclass", {})
    plain_ones = {
        name: example
        for name, example in EXAMPLES[table].items()
        if example.fresh and all(map(plain, example.calls))
    }
    assert disagreements(plain_ones, *both(path)) == []
