"""Hooks written by hand, in plain PyTorch, give the numbers that the docstrings promise."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn

Sample = Callable[[str], ModuleType]


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


def test_two_steps_forward_and_backward(sample: Sample) -> None:
    two_steps = sample("two_steps")
    model = two_steps.TwoSteps()
    first: list[Tensor] = []
    second: list[Tensor] = []
    watch(model.f1, first)
    watch(model.f2, second)
    x = two_steps.example_input().requires_grad_()
    model(x).sum().backward()
    assert [t.tolist() for t in first] == [[1, 2, 3, 4], [82], [0.25], [2, 2, 2, 2]]
    assert [t.tolist() for t in second] == [[82], [20.5], [1], [0.25]]
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2, 2]
    assert model.f1.weight.grad.tolist() == [[0.25, 0.5, 0.75, 1]]
    assert model.f1.bias.grad.tolist() == [0.25]


def test_two_steps_goes_backward_in_reverse_order(sample: Sample) -> None:
    two_steps = sample("two_steps")
    model = two_steps.TwoSteps()
    order: list[str] = []
    for name in ("f1", "f2"):
        layer = getattr(model, name)
        layer.register_full_backward_hook(lambda *_, name=name: order.append(name))
    model(two_steps.example_input().requires_grad_()).sum().backward()
    assert order == ["f2", "f1"]


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
    assert x.grad is not None
    assert x.grad.tolist() == [16]
    assert not list(model.parameters())


def test_double_passes_the_numerical_check_of_gradients(sample: Sample) -> None:
    double = sample("doubling").DoubleFunction.apply
    x = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(double, x.requires_grad_())
