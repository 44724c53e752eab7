"""A convolution followed by a linear layer: the shapes that a hook on each sees.

Without padding a 3x3 kernel takes one pixel off every side, so 1x3x8x8 becomes 1x16x6x6, and the
linear layer takes 16 * 6 * 6 = 576 numbers. Try, in this folder:

    hookscope tree conv_then_linear.py:ConvThenLinear --shapes
    hookscope capture conv_then_linear.py:ConvThenLinear --what input,output
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConvThenLinear(nn.Module):
    """Bx3x8x8 in, Bx10 out; the convolution's output is Bx16x6x6."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, kernel_size=3, stride=1)
        self.fc = nn.Linear(16 * 6 * 6, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return ten numbers for each image."""
        out: Tensor = self.fc(self.conv(images).flatten(1))
        return out


def example_input() -> Tensor:
    """Return one image of noise: 1x3x8x8 float32, the same every time."""
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
