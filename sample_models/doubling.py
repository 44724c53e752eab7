"""An autograd function of one's own: it doubles its input and, on the way back, the gradient.

The model returns (2x)^2. At x = 2 that is 16, and its gradient is 8x = 16 too: the square passes
back 2 * 4 = 8, the doubling makes 16 of it. Try, in this folder:

    hookscope grads doubling.py:SquareOfDouble --loss sum --what output,input
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class DoubleFunction(torch.autograd.Function):
    """2x forward, 2g backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return 2x. Nothing need be kept for the way back."""
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Return the gradient at x, given the gradient at 2x."""
        (grad,) = grads
        return 2 * grad


class Double(nn.Module):
    """The function as a module, so that hooks can watch it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 2x."""
        doubled: Tensor = DoubleFunction.apply(x)
        return doubled


class SquareOfDouble(nn.Module):
    """(2x)^2 for every entry of a tensor of any shape. It has no parameters at all."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = Double()

    def forward(self, x: Tensor) -> Tensor:
        """Return the square of the doubled ``x``."""
        doubled: Tensor = self.twice(x)
        return doubled**2


def example_input() -> Tensor:
    """Return [2] as float32."""
    return torch.tensor([2.0])
