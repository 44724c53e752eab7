"""One optimizer step against the same step by hand, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed, RequestError
from hookscope.specs.choices import OPTIMIZERS
from tests.hooks.test_values import hooks_left
from tests.oracle.by_hand import same_bits

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def by_hand(
    net: nn.Module, kind: str, train: bool = False, **arguments: Any
) -> dict[str, tuple[Tensor, Tensor]]:
    """Gradient and update of every parameter of a copy, with torch.optim alone."""
    net = copy.deepcopy(net).train(train)
    optimizer = getattr(torch.optim, kind)(net.parameters(), **arguments)
    F.cross_entropy(net(X), torch.full((4,), 2)).backward()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer.step()
    return {n: (p.grad, p.detach() - before[n]) for n, p in net.named_parameters()}


@pytest.mark.parametrize(
    ("name", "kind", "arguments"),
    [
        ("sgd", "SGD", {"lr": 0.1}),
        ("sgd", "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        ("adam", "Adam", {"lr": 0.01, "betas": (0.8, 0.99)}),
        ("adamw", "AdamW", {}),
        ("rmsprop", "RMSprop", {"centered": True}),
        ("adagrad", "Adagrad", {}),
        ("rprop", "Rprop", {"lr": 0.02}),
    ],
)
def test_gradients_and_updates_are_those_by_hand(
    name: str, kind: str, arguments: dict[str, Any]
) -> None:
    net = small()
    others = {key: value for key, value in arguments.items() if key != "lr"}
    lr = arguments.get("lr")
    made = hookscope.step(net, optimizer=name, lr=lr, opt_args=others, target=2, input=X)
    expected = by_hand(net, kind, **arguments)
    for parameter, (gradient, update) in expected.items():
        module, _, own = parameter.rpartition(".")
        # Cross-entropy of ours and of torch are the same number by two ways, not the same bits.
        assert torch.allclose(made[f"{module}/{own}.grad"], gradient, atol=1e-6), parameter
        assert torch.allclose(made[f"{module}/{own}.update"], update, atol=1e-6), parameter
    assert made.metadata["optimizer"]["class"] == kind


def squared(output: Tensor) -> Tensor:
    return (output**2).sum()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_one_and_the_same_loss_every_bit_agrees(name: str, train: bool) -> None:
    net = small()
    made = hookscope.step(net, optimizer=name, lr=0.05, loss=squared, input=X, train=train)
    other = copy.deepcopy(net).train(train)
    optimizer = getattr(torch.optim, OPTIMIZERS[name])(other.parameters(), lr=0.05)
    squared(other(X)).backward()
    optimizer.step()
    for key, before in net.named_parameters():
        module, _, own = key.rpartition(".")
        after = other.get_parameter(key)
        assert same_bits(made[f"{module}/{own}.grad"], after.grad), key
        assert same_bits(made[f"{module}/{own}.update"], after.detach() - before.detach()), key


def test_a_live_model_is_put_back_as_it_was() -> None:
    net = small().train()
    net[0].weight.grad = mark = torch.ones_like(net[0].weight)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    hookscope.step(net, lr=10.0, target=2, input=X, train=True)
    assert all(same_bits(value, state[name]) for name, value in net.state_dict().items())
    assert net[0].weight.grad is mark and net.training
    assert hooks_left(net) == 0


@pytest.mark.parametrize("kind", ["step_pre", "step_post"])
def test_a_model_is_put_back_when_the_step_is_interrupted(kind: str) -> None:
    net = small()
    state = {name: value.clone() for name, value in net.state_dict().items()}

    def interrupt(optimizer: Any, args: Any, kwargs: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hookscope.step(net, lr=10.0, target=2, input=X, hooks=interrupt, hook_kind=kind)
    assert all(same_bits(value, state[name]) for name, value in net.state_dict().items())


def test_update_over_weight_is_told_and_the_chosen_layers_alone() -> None:
    net = small()
    made = hookscope.step(net, lr=0.1, target=2, input=X, layers=["3"])
    keys = ["3/bias.grad", "3/weight.grad", "3/bias.update", "3/weight.update"]
    assert sorted(made) == sorted(keys)
    [record] = [r for r in made.records if r.key == "3/weight.update"]
    expected = made["3/weight.update"].norm() / net[3].weight.detach().norm()
    assert record.ratio == pytest.approx(float(expected), rel=1e-6)


def test_a_frozen_parameter_and_one_outside_the_loss_have_words_and_no_update() -> None:
    net = small()
    net[0].bias.requires_grad_(False)
    net.add_module("idle", nn.Linear(3, 3))
    net.forward = lambda x: nn.Sequential.forward(net[:4], x)  # type: ignore[method-assign]
    made = hookscope.step(net, target=2, input=X)
    reasons = {(a.module, a.what): a.reason for a in made.absent}
    assert reasons["0", "bias.grad"] == "frozen"
    assert reasons["idle", "weight.grad"] == "never ran"
    assert not any(key.startswith(("0/bias", "idle/")) for key in made)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"opt_args": {"momentm": 1}}, "SGD takes no argument 'momentm'.\nDid you mean momentum"),
        ({"lr": -1.0}, "SGD does not accept lr=-1.0: Invalid learning rate: -1.0."),
    ],
)
def test_a_wrong_request_is_told_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        hookscope.step(small(), input=X, **options)


def test_a_model_without_parameters_and_a_limit_are_refused() -> None:
    with pytest.raises(RequestError, match="no parameter that requires grad"):
        hookscope.step(nn.Tanh(), loss="sum", input=X)
    with pytest.raises(CheckFailed, match="limit"):
        hookscope.step(small(), target=2, input=X, layers=["3"], max_bytes=150)
