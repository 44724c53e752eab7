"""Two functions in a row, small enough to follow forward and backward by hand.

f1(x) = 8 * x1 + 8 * x2 + 8 * x3 + 8 * x4 + 2 and f2(y) = y / 4, on x = [1, 2, 3, 4]:

    forward   f1: [1, 2, 3, 4] -> 82        f2: 82 -> 20.5
    backward  f2: 1 -> 0.25                 f1: 0.25 -> [2, 2, 2, 2]

The gradient at f1's weight is 0.25 * x = [0.25, 0.5, 0.75, 1], at its bias 0.25. Try, in this
folder:

    hookscope capture two_steps.py:TwoSteps --what input,output
    hookscope grads two_steps.py:TwoSteps --loss sum --what output,input,param
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Quarter(nn.Module):
    """x / 4 for every entry of a tensor of any shape."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a quarter of ``x``."""
        return x / 4


class TwoSteps(nn.Module):
    """f2(f1(x)): four numbers in, one out."""

    def __init__(self) -> None:
        super().__init__()
        self.f1 = nn.Linear(4, 1)
        self.f2 = Quarter()
        nn.init.constant_(self.f1.weight, 8)
        nn.init.constant_(self.f1.bias, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the one number as a tensor of shape 1 (or Bx1 for a batch)."""
        out: Tensor = self.f2(self.f1(x))
        return out


def example_input() -> Tensor:
    """Return [1, 2, 3, 4] as float32."""
    return torch.tensor([1.0, 2.0, 3.0, 4.0])
