"""One NaN planted in a random nesting of modules and functions: exactly its place is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import hookscope
from tests.model_analysis.health.faulty import function
from tests.zoo import Module

Step = nn.Module | Callable[[Tensor], Tensor]


def negative_log(x: Tensor) -> Tensor:
    return torch.log(-x.abs() - 1)


SOUND = {
    "abs": torch.abs,
    "add": lambda x: x + 1,
    "mean": lambda x: x - x.mean((0, 1)),
    "reshape": lambda x: x.flatten().reshape(x.shape),
    "guarded": lambda x: torch.where(x > 0, torch.log(x), x),
}
LEAVES = {
    "tanh": nn.Tanh,
    "linear": lambda: nn.Linear(4, 4),
    "function": lambda: function(torch.sin),
}
PLANTED = {
    "log": negative_log,
    "module": lambda: function(negative_log),
    "block": lambda: nn.Threshold(1e9, float("nan")),
}


class Nest(nn.Module):
    """Applies its steps one after the other, or all to its input, and adds the results."""

    def __init__(self, steps: list[Step], parallel: bool) -> None:
        super().__init__()
        self.children_of = nn.ModuleList([s for s in steps if isinstance(s, nn.Module)])
        self.steps, self.parallel = tuple(steps), parallel

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel:
            results = [step(x) for step in self.steps]
            return torch.stack(results).sum(0)
        for step in self.steps:
            x = step(x)
        return x


def built(plan: object) -> Step:
    """Make a step of a plan: a name, or a pair of whether it is parallel and plans."""
    if isinstance(plan, tuple):
        parallel, plans = plan
        return Nest([built(p) for p in plans], parallel)
    if plan in LEAVES or plan in ("module", "block"):
        return {**LEAVES, **PLANTED}[plan]()
    return {**SOUND, **PLANTED}[plan]


sound_steps = st.recursive(
    st.sampled_from([*SOUND, *LEAVES]),
    lambda steps: st.tuples(st.booleans(), st.lists(steps, min_size=1, max_size=3)),
    max_leaves=4,
)


@st.composite
def plans_with_a_fault(draw: st.DrawFn) -> tuple[bool, list[object]]:
    """A nest with one planted step at any depth."""
    plan: object = draw(st.sampled_from([*PLANTED]))
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(sound_steps, max_size=3))
        steps.insert(draw(st.integers(0, len(steps))), plan)
        plan = (draw(st.booleans()), steps)
    return plan


class FirstFault(TorchFunctionMode):
    """The first call of a function or of a leaf with finite tensors and a result with NaN.

    A NaN of ``log`` that ``where`` leaves out is no fault, so that only ``negative_log`` and
    modules without functions of their own are looked at.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name or "." for name, module in model.named_modules()}
        self.open: list[nn.Module] = []
        self.faults: list[tuple[str, str]] = []
        for module in self.names:
            module.register_forward_pre_hook(lambda module, args: self.open.append(module))
            module.register_forward_hook(self._after)

    def _after(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.open.pop()
        if isinstance(module, nn.Threshold):
            self._judge(module, "", args, output)

    def _judge(self, module: nn.Module, name: str, args: object, result: object) -> None:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if all(t.isfinite().all() for t in tensors) and result.isnan().any():
            self.faults.append((self.names[module], name))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        all_negative = func is torch.log and bool((args[0] <= -1).all())
        if all_negative and self.open and not isinstance(self.open[-1], nn.Threshold):
            self._judge(self.open[-1], "log", args, result)
        return result


def origins_of(model: nn.Module, x: Tensor) -> list[tuple[str, str]]:
    """The places that ``check`` reports: layer and function."""
    found = hookscope.check(model, input=x, forward_only=True).of("nan")
    messages = [finding.message.partition("(): ")[0].rpartition("in ") for finding in found]
    functions = [name if "seen in" not in start + mid else "" for start, mid, name in messages]
    return [(f.layer, name) for f, name in zip(found, functions, strict=True)]


@settings(max_examples=40, deadline=None)
@given(plan=plans_with_a_fault())
def test_one_fault_in_any_nesting_is_the_only_origin(plan: tuple[bool, list[object]]) -> None:
    torch.manual_seed(0)
    model = built(plan)
    x = torch.randn(3, 4) * 0.5
    by_hand = FirstFault(model)
    with torch.no_grad(), by_hand:
        model(x)
    assert origins_of(built(plan).train(model.training), x) == by_hand.faults[:1]


@pytest.mark.parametrize(
    "between", [lambda x: x.mean((2, 3)), lambda x: x.amax(3).flatten(1), lambda x: x[:, :, 0, 0]]
)
def test_a_function_that_gets_nan_from_a_child_is_no_origin(
    between: Callable[[Tensor], Tensor],
) -> None:
    head = Module(
        lambda self, x: self.fc(between(self.pool(self.bad(self.conv1(x))))),
        conv1=nn.Conv2d(3, 4, 3),
        bad=function(negative_log),
        pool=nn.MaxPool2d(2),
        fc=nn.Linear(4, 2),
    )
    assert origins_of(head, torch.randn(1, 3, 4, 4)) == [("bad", "log")]


def test_a_function_with_finite_arguments_beside_a_nan_is_an_origin_too() -> None:
    two = Module(lambda self, x: self.bad(x) + torch.sqrt(-x.abs() - 1), bad=function(negative_log))
    assert origins_of(two, torch.ones(2, 3)) == [("bad", "log"), (".", "sqrt")]


def test_a_mask_in_a_buffer_is_no_origin_and_a_softmax_of_nothing_else_is() -> None:
    def masked(hidden: int) -> Module:
        model = Module(lambda self, x: torch.softmax(x + self.mask, -1))
        mask = torch.zeros(4).index_fill(0, torch.arange(hidden), float("-inf"))
        model.register_buffer("mask", mask, persistent=False)
        return model

    x = torch.ones(2, 4)
    assert origins_of(masked(2), x) == []
    nan = hookscope.check(masked(4), input=x, forward_only=True, only=["nan"]).findings
    assert [(f.layer, "in softmax()" in f.message) for f in nan] == [(".", True)]
