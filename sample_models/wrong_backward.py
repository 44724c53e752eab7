"""A custom autograd function whose backward is wrong, and hard to catch. Try, in this folder:

    hookscope gradcheck wrong_backward.py:ScaleFunction --shape 1x3 --shape 3
    hookscope gradcheck wrong_backward.py:ScaleFunction --shape 2x3 --shape 3  # exit status 1
    hookscope gradcheck wrong_backward.py:Scale  # exit status 1

It multiplies each of a batch of rows by the same scale. The gradient at the scale is then to be the
sum over the batch of what each row says; this one takes the mean. For a batch of one the two are
the same, so that a test with a single row passes, and a model still learns, only slower.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ScaleFunction(torch.autograd.Function):
    """x * scale, for x of shape BxC and scale of shape C."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        """Return the product and keep both factors for the way back."""
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients at x and, wrongly, at scale."""
        (grad,) = grads
        x, scale = ctx.saved_tensors
        return grad * scale, (grad * x).mean(0)  # .sum(0) is right


class Scale(nn.Module):
    """The function as a layer of three features with a learnt scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` (Bx3) with its columns scaled."""
        scaled: Tensor = ScaleFunction.apply(x, self.scale)
        return scaled


def example_input() -> Tensor:
    """Return two rows for the layer; the function takes a scale besides."""
    return torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
