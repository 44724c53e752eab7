"""The structure of a model that is remembered is the one that the model has now."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hookscope
from hookscope.hooks.layers import layers_of
from hookscope.sources.structure import structure_of
from tests.oracle.by_hand import same_bits
from tests.sources.torchscript.examples import quietly
from tests.zoo import Module


def found(model: nn.Module) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(layer.name, id(layer.module), layer.aliases) for layer in layers_of(model)]


def named(model: nn.Module) -> list[tuple[str, int, tuple[str, ...]]]:
    """The same from PyTorch's own list of names."""
    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name or ".")
    return [(first, module, tuple(others)) for module, (first, *others) in names.items()]


def net() -> nn.Sequential:
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    return nn.Sequential(nn.Linear(2, 2), block, nn.ModuleDict({"a": block[0], "b": nn.Tanh()}))


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "added": lambda model: model.append(nn.ReLU()),
    "added to a leaf": lambda model: model[0].add_module("inner", nn.ReLU()),
    "removed": lambda model: model[1].__delitem__(1),
    "replaced": lambda model: model[1].__setitem__(1, nn.ReLU()),
    "set to None": lambda model: model[2].add_module("b", None),
    "renamed": lambda model: setattr(
        model[1], "_modules", {"first": model[1][0], "second": model[1][1]}
    ),
    "in another order": lambda model: model[1]._modules.__setitem__(
        "0", model[1]._modules.pop("0")
    ),
    "shared": lambda model: model[2].__setitem__("b", model[0]),
    "no longer shared": lambda model: model[2].__setitem__("a", copy.deepcopy(model[1][0])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen(change: str) -> None:
    model = net()
    before = structure_of(model)
    assert structure_of(model) is before and found(model) == named(model)
    CHANGES[change](model)
    assert structure_of(model) is not before
    assert found(model) == named(model)


def test_after_any_changes_the_layers_are_those_that_the_model_has() -> None:
    choose = random.Random(0)
    model, shared = net(), nn.Linear(2, 2)
    for _ in range(300):
        parents = [x for x in model.modules() if isinstance(x, nn.Sequential)]
        parent = choose.choice(parents)
        made = choose.choice([nn.ReLU(), nn.Sequential(nn.ReLU()), shared, None])
        names = [*parent._modules, "0", "new"]
        if choose.random() < 0.3 and len(parent._modules) > 1:
            del parent._modules[choose.choice(list(parent._modules))]
        else:
            parent._modules[choose.choice(names)] = made
        assert found(model) == named(model)


def test_a_recording_sees_what_was_added_since_the_one_before() -> None:
    model, x = net()[:2], torch.randn(1, 2)
    for names in (["0", "1"], ["0", "1", "2"]):
        for _ in range(2):
            with hookscope.record(model, layers=["*", "!*.*", "!(model)"]) as capture:
                expected = model(x)
            assert list(capture) == [f"{name}/output" for name in names]
            assert same_bits(capture[names[-1]], expected.detach())
        model.append(nn.Tanh())


class Equal(Module):
    """A module that is equal to all of its kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 2


def test_a_model_is_not_taken_for_another_one_that_it_is_equal_to() -> None:
    first, second = (Equal(lambda self, x: self.inner(x), inner=nn.Linear(2, 2)) for _ in range(2))
    x = torch.randn(1, 2)
    for model in (first, second, first):
        with hookscope.record(model) as capture:
            expected = model(x)
        assert same_bits(capture["inner"], expected.detach())


def test_it_keeps_no_model_alive() -> None:
    model = net()[:2]
    model[1].owner = [model]  # type: ignore[assignment] # as some models do
    with hookscope.record(model):
        model(torch.randn(1, 2))
    alive = [weakref.ref(module) for module in model.modules()]
    del model
    gc.collect()
    assert [module() for module in alive] == [None] * len(alive)


def test_a_model_that_is_compiled_after_it_was_recorded_is_recorded_again() -> None:
    model, x = net()[:2], torch.randn(1, 2)
    with hookscope.record(model) as before:
        model(x)
    model.compile(backend="eager")
    assert structure_of(model).has_compiled()
    with hookscope.record(model) as after:
        model(x)
    assert list(after) == list(before) and same_bits(after["1.0"], before["1.0"])
    assert structure_of(nn.Sequential(torch.compile(net()))).has_compiled()


def test_a_part_that_is_scripted_after_the_first_recording_is_open() -> None:
    model, x = net()[:2], torch.randn(1, 2)
    assert not structure_of(model).has_scripted
    with quietly():
        model[1] = torch.jit.script(model[1])
    with hookscope.record(model) as capture:
        model(x)
    assert "1.0/output" in capture
