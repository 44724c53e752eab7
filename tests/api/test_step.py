"""One optimizer step, also with edits and hooks, against the same step by hand, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed, HookError, RequestError
from hookscope.specs.choices import OPTIMIZERS
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.hooks.test_values import hooks_left
from tests.oracle.by_hand import same_bits
from tests.zoo import Alias

SAMPLES = REPO / "sample_models"
Step = dict[str, tuple[Tensor, Tensor]]
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 3))


@pytest.fixture(params=FORMS)
def word(request: pytest.FixtureRequest) -> str:
    return f"{SAMPLES}/{request.param}"


def by_hand(net: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Step:
    """Gradient and update of each parameter, for the sum of the outputs as the loss."""
    net(x).flatten().sum().backward()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    gradients = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    optimizer.step()
    return {
        name: (gradients[name], p.detach() - before[name]) for name, p in net.named_parameters()
    }


def demand_equal(made: hookscope.Capture, expected: Step) -> None:
    for name, (gradient, update) in expected.items():
        module, _, own = name.rpartition(".")
        assert same_bits(made[f"{module}/{own}.grad"], gradient), name
        assert same_bits(made[f"{module}/{own}.update"], update), name


ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"lr": 0.05}) for name in OPTIMIZERS),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("adam", {"lr": 0.01, "betas": (0.8, 0.99)}),
    ("rmsprop", {"centered": True}),
    ("adamw", {}),
]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("name", "arguments"), ARGUMENTS)
def test_gradients_and_updates_are_those_by_hand(
    name: str, arguments: dict[str, Any], train: bool
) -> None:
    net = small()
    others = {key: value for key, value in arguments.items() if key != "lr"}
    options = {"optimizer": name, "lr": arguments.get("lr"), "opt_args": others, "loss": "sum"}
    made = hookscope.step(net, **options, input=X, train=train)
    assert made.metadata["optimizer"]["class"] == OPTIMIZERS[name]
    other = small().train(train)
    demand_equal(
        made,
        by_hand(other, X, getattr(torch.optim, OPTIMIZERS[name])(other.parameters(), **arguments)),
    )


@pytest.mark.parametrize("kind", [None, "step_pre", "step_post"])
def test_a_live_model_is_put_back_as_it_was_also_by_an_interrupt(kind: str | None) -> None:
    net = small().train()
    net[0].weight.grad = mark = torch.ones_like(net[0].weight)
    state = {name: value.clone() for name, value in net.state_dict().items()}

    def interrupt(optimizer: Any, args: Any, kwargs: Any) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"lr": 10.0, "target": 2, "input": X, "train": True}
    if kind is None:
        hookscope.step(net, **options)
    else:
        with pytest.raises(KeyboardInterrupt):
            hookscope.step(net, **options, hooks=interrupt, hook_kind=kind)
    assert all(same_bits(value, state[name]) for name, value in net.state_dict().items())
    assert net[0].weight.grad is mark and net.training
    assert hooks_left(net) == 0


def test_an_edit_and_a_gradient_edit_are_the_hooks_by_hand(word: str) -> None:
    net = hookscope.load_model(word).module.eval()
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    net.get_submodule("conv1").register_forward_hook(lambda m, args, output: output * 0.5)

    def clip(module: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda grad: grad.clamp(-0.01, 0.01))

    net.get_submodule("relu2").register_forward_hook(clip)
    expected = by_hand(net, x, torch.optim.SGD(net.parameters(), lr=0.1))
    changes = {"edits": "conv1=scale:0.5", "grad_edits": "relu2=clip:0.01"}
    made = hookscope.step(word, input=x, loss="sum", lr=0.1, compare=True, **changes)
    demand_equal(made, expected)
    assert made["relu2/output.grad"].abs().max() <= 0.01 < made["relu2/output.grad.unedited"].max()
    drift = {entry["key"]: entry["largest"] for entry in made.metadata["effect"]["drift"]}
    assert drift["conv1/weight.update"] > 0
    assert "relu2/output.grad" not in drift  # which a step without edits does not record


@pytest.mark.parametrize("register", ["step_pre", "step_post"])
def test_a_hook_of_the_step_is_the_one_registered_by_hand(register: str) -> None:
    def change(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.data.clamp_(-0.1, 0.1)
            parameter.grad.mul_(0.5)

    net = small().eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    getattr(optimizer, f"register_{register}_hook")(change)
    expected = by_hand(net, X, optimizer)
    live = small()
    state = {name: value.clone() for name, value in live.state_dict().items()}
    options = {"optimizer": "adam", "lr": 0.1, "loss": "sum", "input": X}
    made = hookscope.step(live, hooks=change, hook_kind=register, **options)
    demand_equal(made, expected)
    assert all(same_bits(value, state[name]) for name, value in live.state_dict().items())


def test_what_a_hook_of_the_step_emits_is_the_models() -> None:
    def tell(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        hookscope.emit("lr", optimizer.param_groups[0]["lr"])

    made = hookscope.step(small(), lr=0.25, loss="sum", input=X, hooks=tell, hook_kind="step_pre")
    assert made["./lr"].item() == 0.25


def test_a_failing_hook_of_the_step_keeps_the_gradients() -> None:
    def fail(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        raise ValueError("no more")

    net = small()
    with pytest.raises(HookError, match=r"fail .*\d+ .*ValueError: no more") as caught:
        hookscope.step(net, loss="sum", input=X, hooks=fail, hook_kind="step_pre")
    assert "0/weight.grad" in caught.value.capture
    assert "failed" in caught.value.capture.metadata
    assert hooks_left(net) == 0


@pytest.mark.parametrize(
    ("verb", "hook", "message"),
    [
        ("grads", {"hook_kind": "step_pre"}, "grads"),
        ("capture", {"hook_kind": "tensor"}, "capture"),
        ("step", {"hook_kind": "step_post", "glob": "0"}, "'0'"),
    ],
)
def test_a_kind_that_would_never_run_is_refused(verb: str, hook: Any, message: str) -> None:
    hooks: Any = {hook["glob"]: print} if "glob" in hook else print
    with pytest.raises(RequestError, match=message):
        getattr(hookscope, verb)(small(), input=X, hooks=hooks, hook_kind=hook["hook_kind"])


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
        ({"opt_args": {"momentm": 1}}, "momentm.*\n.*momentum"),
        ({"lr": -1.0}, "lr=-1.0"),
    ],
)
def test_a_wrong_request_is_told_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        hookscope.step(small(), input=X, **options)


def test_a_model_without_parameters_and_a_limit_are_refused() -> None:
    with pytest.raises(RequestError, match="parameter"):
        hookscope.step(nn.Tanh(), loss="sum", input=X)
    with pytest.raises(CheckFailed, match="limit"):
        hookscope.step(small(), target=2, input=X, layers=["3"], max_bytes=150)


def test_a_step_whose_hooks_change_the_model_is_refused() -> None:
    x = torch.randn(2, 4)
    plain = hookscope.step(Alias(), input=x, loss="sum", lr=0.1)
    assert "inner/weight.update" in plain
    with pytest.raises(CheckFailed, match="different"):
        hookscope.step(Alias(), input=x, loss="sum", lr=0.1, grad_edits="same=scale:1")
