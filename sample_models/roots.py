"""The mean of the square roots of three numbers: a gradient, and a step along it, by hand.

z = mean(sqrt(x + shift)): x = [0.5681, 0.4868, 0.9277] is a parameter, the shift of 3 the input.
The gradient at x is 1 / (6 sqrt(x + 3)) = [0.0882, 0.0893, 0.0841], and gradient descent with a
learning rate of 0.001 goes to [0.5680, 0.4867, 0.9276]. Try, in this folder:

    hookscope grads roots.py:MeanOfRoots --loss sum
    hookscope step roots.py:MeanOfRoots --loss sum --optimizer sgd --lr 0.001
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MeanOfRoots(nn.Module):
    """One number out of a shift that is added to three."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5681, 0.4868, 0.9277]))

    def forward(self, shift: Tensor) -> Tensor:
        """Return mean(sqrt(x + shift)), a tensor of no dimensions."""
        return (self.x + shift).sqrt().mean()


def example_input() -> Tensor:
    """Return 3 as float32."""
    return torch.tensor(3.0)
