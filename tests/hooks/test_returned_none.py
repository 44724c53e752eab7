"""A parameter without a gradient is told with the reason: the backward function, or the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import hookscope


class Times(torch.autograd.Function):
    """A product that forgets the gradient of its second factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        """Multiply."""
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the first factor alone."""
        return gradient * ctx.saved_tensors[0], None


class Net(nn.Module):
    """Two factors, of which only one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.unused = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return Times.apply(x, self.w)  # type: ignore[no-any-return]


def test_a_function_that_returns_none_is_not_taken_for_a_loss_without_the_parameter() -> None:
    net = Net()
    with hookscope.record(net, grads=True) as capture:
        net(torch.ones(2, 4, requires_grad=True)).sum().backward()
    reasons = {absent.what: absent.reason for absent in capture.absent}
    assert net.w.grad is None
    assert reasons["w.grad"] == "a backward function returned None for it"
    assert reasons["unused.grad"] == "outside the loss"


def test_a_gradient_that_comes_from_another_use_is_recorded() -> None:
    net = Net()
    with hookscope.record(net, grads=True) as capture:
        (net(torch.ones(2, 4, requires_grad=True)).sum() + 3 * net.w.sum()).backward()
    assert capture["./w.grad"].tolist() == [3.0] * 4
