"""Hooks written by hand, in plain PyTorch, see what the docstrings of the samples promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Sample = Callable[[str], ModuleType]


@pytest.fixture
def tricky(sample: Sample) -> nn.Module:
    torch.manual_seed(0)
    return sample("tricky").Tricky().eval()


@pytest.fixture
def x(sample: Sample) -> Tensor:
    return sample("tricky").example_input()


def calls(model: nn.Module, x: Tensor) -> Counter[str]:
    """How often each module was called in one forward pass."""
    executed: Counter[str] = Counter()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: executed.update([name]))
    model(x)
    return executed


def test_in_place_changes_reach_what_norm_returned(tricky: nn.Module, x: Tensor) -> None:
    kept: list[Tensor] = []
    tricky.norm.register_forward_hook(lambda _, args, out: kept.extend([out, out.clone()]))
    assert calls(tricky, x)["act"] == 2
    assert not torch.equal(*kept)


def test_one_module_has_two_names(tricky: nn.Module) -> None:
    assert tricky.head is tricky.tied
    names = {name for name, _ in tricky.named_modules()}
    assert names & {"head", "tied"} == {"head"}


def test_outputs_are_tuples_and_dicts_with_nothing_in_places(tricky: nn.Module, x: Tensor) -> None:
    seen: dict[str, Any] = {}
    for name in ("split", "report"):
        tricky.get_submodule(name).register_forward_hook(
            lambda _, args, out, name=name: seen.update({name: out})
        )
    keywords: list[str] = []
    tricky.gate.register_forward_pre_hook(
        lambda _, args, kwargs: keywords.extend(kwargs), with_kwargs=True
    )
    out = tricky(x)
    _, (second, nothing) = seen["split"]
    assert (second.shape, nothing) == ((1, 4, 8, 8), None)
    assert seen["report"]["mask"] is None
    assert seen["report"]["largest"].dtype == torch.int64
    assert out["logits"].shape == (1, 10)
    assert keywords == ["gate"]


def test_some_modules_are_never_called_and_get_no_gradient(tricky: nn.Module, x: Tensor) -> None:
    executed = calls(tricky, x)
    not_executed = {name for name, _ in tricky.named_modules()} - set(executed)
    assert not_executed == {"extra", "branches", "branches.1"}
    tricky(x)["logits"].sum().backward()
    without = {name for name, p in tricky.named_parameters() if p.grad is None}
    assert without == {"branches.1.weight", "branches.1.bias"}


def test_training_moves_the_integer_buffers(tricky: nn.Module, x: Tensor) -> None:
    assert tricky.seen.dtype == torch.int64
    assert "extra" in calls(tricky.train(), x)
    assert int(tricky.seen) == int(tricky.norm.num_batches_tracked) == 1


def watch(module: nn.Module, into: list[Tensor]) -> None:
    """Append each output of ``module`` and, on the way back, the gradients of output and input."""
    module.register_forward_hook(lambda _, args, out: into.extend([args[0].clone(), out.clone()]))
    module.register_full_backward_hook(lambda _, grad_in, grad_out: into.extend(grad_out + grad_in))


def test_convolution_without_padding_takes_a_pixel_off_every_side(sample: Sample) -> None:
    conv_then_linear = sample("conv_then_linear")
    model = conv_then_linear.ConvThenLinear()
    seen: list[Tensor] = []
    watch(model.conv, seen)
    assert model(conv_then_linear.example_input()).shape == (1, 10)
    assert [tuple(t.shape) for t in seen] == [(1, 3, 8, 8), (1, 16, 6, 6)]


def test_two_steps_forward_and_backward_in_reverse_order(sample: Sample) -> None:
    two_steps = sample("two_steps")
    model = two_steps.TwoSteps()
    seen: list[Tensor] = []
    watch(model.f1, seen)
    watch(model.f2, seen)
    x = two_steps.example_input().requires_grad_()
    model(x).sum().backward()
    assert [t.tolist() for t in seen] == [
        *([1, 2, 3, 4], [82], [82], [20.5]),
        *([1], [0.25], [0.25], [2, 2, 2, 2]),
    ]
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2, 2]
    assert model.f1.weight.grad.tolist() == [[0.25, 0.5, 0.75, 1]]
    assert model.f1.bias.grad.tolist() == [0.25]


def test_square_of_double_has_a_gradient_of_sixteen_at_two(sample: Sample) -> None:
    doubling = sample("doubling")
    model = doubling.SquareOfDouble()
    seen: list[Tensor] = []
    watch(model.twice, seen)
    x = doubling.example_input().requires_grad_()
    out = model(x)
    out.sum().backward()
    assert out.tolist() == [16]
    assert [t.tolist() for t in seen] == [[2], [4], [8], [16]]
    assert x.grad is not None and x.grad.tolist() == [16]
    assert not list(model.parameters())
    given = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(doubling.DoubleFunction.apply, given.requires_grad_())
