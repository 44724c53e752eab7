"""However a run fails, no hook is left and the next run is clean; no command changes its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.errors import HookscopeError
from tests.conftest import REPO
from tests.hooks.test_values import hooks_left
from tests.oracle.by_hand import same_bits
from tests.zoo import WritesInput

SAMPLES = REPO / "sample_models"
X = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def fail(*arguments: Any) -> None:
    raise ValueError("no")


def interrupt(*arguments: Any) -> None:
    raise KeyboardInterrupt


def narrow(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output[:1]


def own(verb: str, kind: str, function: Callable[..., Any] = fail, **more: Any) -> Any:
    return verb, {"hooks": function, "hook_kind": kind, **more}


FAILURES: dict[str, Any] = {
    "an edit that finds no channel": ("capture", {"edits": "conv2[99]=zero"}),
    "an edit of a call that never came": ("capture", {"edits": "conv2:2=zero"}),
    "an edit of a gradient that has no channel": ("grads", {"grad_edits": "relu2[99]=zero"}),
    "a gradient that never arrives": (
        "grads",
        {"edits": "fc=zero", "grad_edits": "conv1:3=zero", "target": 1},
    ),
    "a hook before": own("capture", "forward_pre"),
    "a hook after": own("capture", "forward"),
    "a hook interrupted": own("capture", "forward", interrupt),
    "a hook of another shape": own("capture", "forward", narrow),
    "a hook on the way back": own("grads", "backward"),
    "a hook on the gradient at outputs": own("grads", "backward_pre"),
    "a hook on a tensor": own("grads", "tensor"),
    "a hook on a tensor interrupted": own("grads", "tensor", interrupt),
    "a hook before the step": own("step", "step_pre"),
    "a hook after the step": own("step", "step_post", interrupt),
    "a loss": ("grads", {"loss": fail}),
    "step loss": ("step", {"loss": fail}),
    "a penalty": ("grads", {"penalty": "gp", "loss": fail}),
    "the limit": ("capture", {"max_bytes": 5000}),
    "the limit going back": ("grads", {"max_bytes": 5000}),
    "a trace": ("trace", {"loss": fail}),
    "a shape that the model refuses": ("trace", {"input": torch.ones(1, 3, 8, 8)}),
    "an optimizer": ("step", {"lr": -1.0}),
}


@pytest.fixture(params=["digits.py:trained", "digits_scripted.pt"])
def net(request: pytest.FixtureRequest) -> nn.Module:
    return hookscope.load_model(f"{SAMPLES}/{request.param}").module.eval()


@pytest.mark.parametrize("failure", FAILURES)
def test_nothing_is_left_and_the_next_run_is_clean(net: nn.Module, failure: str) -> None:
    def both() -> tuple[hookscope.Capture, hookscope.Capture]:
        return hookscope.capture(net, input=X), hookscope.grads(net, input=X, target=3)

    clean = both()
    verb, options = FAILURES[failure]
    with pytest.raises((HookscopeError, KeyboardInterrupt)):
        getattr(hookscope, verb)(net, **{"input": X, **options})
    assert hooks_left(net) == 0
    assert torch.overrides._len_torch_function_stack() == 0
    assert all(p.grad is None for p in net.parameters())
    for before, after in zip(clean, both(), strict=True):
        assert before.keys() == after.keys()
        assert all(same_bits(before[key], after[key]) for key in before)


def loss(output: Tensor, target: Any, input: Tensor) -> Tensor:
    return output.sum() + input.mul_(3).sum() * 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "capture": lambda net, x, folder: hookscope.capture(net, input=x, what="input,output"),
    "capture, verified": lambda net, x, folder: hookscope.capture(net, input=x, verify=True),
    "capture, limited": lambda net, x, folder: hookscope.capture(net, input=x, max_bytes=10**6),
    "capture, edited": lambda net, x, folder: hookscope.capture(net, input=x, edits="last=zero"),
    "grads": lambda net, x, folder: hookscope.grads(net, input=x, verify=True),
    "grads, own loss": lambda net, x, folder: hookscope.grads(net, input=x, loss=loss),
    "check": lambda net, x, folder: hookscope.check(net, input=x),
    "trace": lambda net, x, folder: hookscope.trace(net, input=x),
    "ablate": lambda net, x, folder: hookscope.ablate(net, input=x),
    "sweep": lambda net, x, folder: hookscope.sweep(net, input=x),
    "diff": lambda net, x, folder: hookscope.diff(net, net, input=x),
    "gradcheck": lambda net, x, folder: hookscope.gradcheck(net, input=x),
    "step": lambda net, x, folder: hookscope.step(net, input=x),
    "extract": lambda net, x, folder: hookscope.extract(
        net, folder / "out", input=TensorDataset(x), batch=2, workers=0
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_callers_tensor_keeps_its_values(command: str, tmp_path) -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    COMMANDS[command](WritesInput(), x, tmp_path)
    assert same_bits(x, kept)
    assert not x.requires_grad and x.grad is None


def test_record_passes_a_change_in_place_on_as_the_model_makes_it() -> None:
    x = torch.randn(4, 4)
    expected = (x - 0.25).relu()
    with hookscope.record(WritesInput(), what="input,output", grads=True):
        WritesInput()(x)
    assert same_bits(x, expected)
