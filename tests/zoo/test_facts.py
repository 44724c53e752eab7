"""What the zoo says of its models is true, by plain hooks."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.oracle.by_hand import same_bits
from tests.zoo import ZOO, names, tensors_in, total


def followed(model: nn.Module) -> tuple[list[str], set[str]]:
    """The calls of modules as they begin, and the names of those that change an input."""
    calls: list[str] = []
    changed: set[str] = set()
    for name, module in model.named_modules():
        versions: list[list[tuple[Tensor, int]]] = []

        def before(module: nn.Module, args: Any, name: str = name, open: Any = versions) -> None:
            calls.append(name)
            open.append([(tensor, tensor._version) for tensor in tensors_in(args)])

        def after(
            module: nn.Module, args: Any, out: Any, name: str = name, open: Any = versions
        ) -> None:
            if any(tensor._version != version for tensor, version in open.pop()):
                changed.add(name or ".")

        if not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after)
    return calls, changed


@pytest.mark.parametrize("name", ZOO)
def test_modules_are_called_in_this_order_and_these_change_their_input(name: str) -> None:
    one = ZOO[name]
    model = one.model()
    if name == "grows":
        one.run(model)  # what it adds has hooks then
    calls, changed = followed(model)
    with pytest.raises(one.raises) if one.raises else nullcontext():
        one.run(model)
    inside = tuple(call for call in calls if call)
    assert (inside, changed) == (one.calls, set(one.in_place))


@pytest.mark.parametrize("name", ZOO)
def test_names_of_modules_and_parameters_are_shared_as_it_is_said(name: str) -> None:
    model = ZOO[name].model()
    twice = {key for key, _ in model.named_modules(remove_duplicate=False)}
    assert twice - dict(model.named_modules()).keys() == set(ZOO[name].aliases)
    parameters = list(model.named_parameters(remove_duplicate=False))
    times = Counter(id(parameter) for _, parameter in parameters)
    assert {n for n, parameter in parameters if times[id(parameter)] > 1} == set(ZOO[name].tied)


@pytest.mark.parametrize("name", names(raises=None))
def test_a_backward_pass_reaches_a_parameter_or_none(name: str) -> None:
    one = ZOO[name]
    model = one.model()
    loss = total(one.run(model))
    assert loss.requires_grad is one.trains
    if one.trains:
        with pytest.raises(one.raises_backward) if one.raises_backward else nullcontext():
            loss.backward()
        assert any(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ZOO)
def test_the_same_model_and_inputs_are_made_each_time_and_the_random_state_stays(name: str) -> None:
    one = ZOO[name]
    states = torch.get_rng_state(), random.getstate()
    models = [one.model(), one.model()]
    given = [tensors_in([one.inputs(), one.keywords()]) for _ in range(2)]
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert all(map(same_bits, *given))
    if name != "lazy":  # its weights have no numbers yet
        assert all(map(same_bits, *(list(model.parameters()) for model in models)))
    assert not any(module.training for module in models[0].modules())


@pytest.mark.parametrize("name", names(raises=None))
def test_a_second_call_returns_the_same_unless_the_model_is_random_or_has_a_state(
    name: str,
) -> None:
    one = ZOO[name]
    model = one.model()
    first, again = ([t.clone() for t in tensors_in(one.run(model))] for _ in range(2))
    assert all(map(same_bits, first, again)) is not (one.random or one.stateful)
