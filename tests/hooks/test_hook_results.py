"""What a user hook may return, and which errors say what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookError, HookscopeError, RequestError
from hookscope.hooks.layers import layers_of
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.user_hooks import UserHook, attach_user_hooks
from tests.oracle.by_hand import same_bits

X = torch.rand(3, 2, generator=torch.Generator().manual_seed(1))


def stepped(hook: Callable[..., Any], kind: str) -> hookscope.Capture:
    net = nn.Linear(2, 2)
    return hookscope.step(net, input=X, loss="sum", hooks=hook, hook_kind=kind)


def test_a_hook_before_the_step_may_return_its_arguments_and_what_one_after_it_returns_is_unused():
    found = []
    for hook, kind in (
        (lambda *_: None, "step_pre"),
        (lambda optimizer, args, kwargs: (args, kwargs), "step_pre"),
        (lambda *_: "anything", "step_post"),
    ):
        torch.manual_seed(0)
        found.append(stepped(hook, kind))
    for one in found[1:]:
        assert list(one) == list(found[0])
        assert all(same_bits(one[key], found[0][key]) for key in one)


def test_other_arguments_for_the_step_are_refused() -> None:
    def fewer(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        return (), kwargs

    with pytest.raises(HookError, match=r"fewer .*step"):
        stepped(fewer, "step_pre")


@pytest.mark.parametrize("kind", ["backward", "backward_pre", "tensor"])
def test_a_gradient_that_arrives_after_the_block_passes_unchanged(kind: str) -> None:
    net, runs = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), []

    def zero(*arguments: Any) -> Any:
        runs.append(kind)
        grads = arguments[1] if kind == "backward" else arguments[-1]
        return grads * 0 if isinstance(grads, Tensor) else tuple(grad * 0 for grad in grads)

    expected = torch.autograd.grad(net(X).sum(), list(net.parameters()))
    hook = UserHook("zero", kind, zero, __file__, None, layers_of(net)[-1:])
    with attach_user_hooks(CallRegistry(net), [hook]):
        within, after = net(X).sum(), net(X).sum()
        assert not torch.autograd.grad(within, net[0].weight)[0].any()
    found = torch.autograd.grad(after, list(net.parameters()))
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    assert len(runs) == 1


def test_an_error_of_hookscope_in_a_hook_is_quoted_without_its_hint() -> None:
    def fail(module: nn.Module, input: Any, output: Tensor) -> None:
        raise HookscopeError("It is too dark.", "Switch on the light.")

    with pytest.raises(HookError) as caught:
        hookscope.capture(nn.Linear(2, 2), input=X, hooks=fail)
    assert caught.value.message.endswith("HookscopeError: It is too dark.")
    assert "light" not in caught.value.hint


def after(module: nn.Module, grad_input: Any, grad_output: Any) -> None: ...


def before(module: nn.Module, grad_output: Any) -> None: ...


def on_tensor(grad: Tensor) -> None: ...


@pytest.mark.parametrize(
    ("hook", "kind"), [(after, "backward"), (before, "backward_pre"), (on_tensor, "tensor")]
)
def test_a_gradient_hook_without_a_kind_is_refused_with_the_kind_that_it_needs(
    hook: Callable[..., Any], kind: str
) -> None:
    hints = {"grads": f'hook_kind="{kind}"', "capture": f"grads with --hook-kind {kind}."}
    for verb, hint in hints.items():
        with pytest.raises(RequestError, match="hook_kind") as caught:
            getattr(hookscope, verb)(nn.Linear(2, 2), input=X, hooks=hook)
        assert hint in caught.value.hint and "module, input, output" in caught.value.hint
