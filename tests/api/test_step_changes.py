"""A step with edits and hooks of the user's own, against the same step by hand, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed, HookError, RequestError
from tests.api.test_step import X, small
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.hooks.test_values import hooks_left
from tests.oracle.by_hand import same_bits

SAMPLES = REPO / "sample_models"
Step = dict[str, tuple[Tensor, Tensor]]


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
    words = (
        r"hook .*fail failed in line \d+ of .*, before the optimizer's step: ValueError: no more"
    )
    with pytest.raises(HookError, match=words) as caught:
        hookscope.step(net, loss="sum", input=X, hooks=fail, hook_kind="step_pre")
    assert "0/weight.grad" in caught.value.capture
    assert "failed" in caught.value.capture.metadata
    assert hooks_left(net) == 0


@pytest.mark.parametrize(
    ("verb", "hook", "message"),
    [
        ("grads", {"hook_kind": "step_pre"}, "needs an optimizer's step, which grads does not run"),
        ("capture", {"hook_kind": "tensor"}, "needs a backward pass, which capture does not run"),
        ("step", {"hook_kind": "step_post", "glob": "0"}, "does not run at layers, but '0'"),
    ],
)
def test_a_kind_that_would_never_run_is_refused(verb: str, hook: Any, message: str) -> None:
    hooks: Any = {hook["glob"]: print} if "glob" in hook else print
    with pytest.raises(RequestError, match=message):
        getattr(hookscope, verb)(small(), input=X, hooks=hooks, hook_kind=hook["hook_kind"])


class Alias(nn.Module):
    """Reads a tensor that it has changed under another name: clones would change its output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.same, self.outer = nn.Linear(6, 6), nn.Dropout(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        z = self.same(y)  # in eval mode y itself
        z += 1
        return self.outer(y) + z[:, :2]


def test_a_step_whose_hooks_change_the_model_is_refused() -> None:
    plain = hookscope.step(Alias(), input=X, loss="sum", lr=0.1)
    assert "inner/weight.update" in plain
    with pytest.raises(CheckFailed, match="gave a different result"):
        hookscope.step(Alias(), input=X, loss="sum", lr=0.1, grad_edits="same=scale:1")
