"""A net whose parts have other names, layouts and bounds in the dumps of the tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo import Module


def attention() -> Module:
    """One head of attention with three projections; returns its output and the weights."""

    def forward(self: Module, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.q(x) @ self.k(x).mT).softmax(-1)
        return weights @ self.v(x), weights

    return Module(forward, **{name: nn.Linear(6, 6) for name in "qkv"})


def block() -> Module:
    """Attention and a linear layer, each with a residual."""

    def forward(self: Module, x: Tensor) -> Tensor:
        middle = x + self.attn(x)[0]
        return middle + self.mlp(middle)

    return Module(forward, attn=attention(), mlp=nn.Linear(6, 6))


class Net(nn.Module):
    """An embedding, two blocks, and a head that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(6, 6)

    def forward(self, input_ids: Tensor, scale: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        if scale is not None:
            x = x * scale
        for block in self.blocks:
            x = block(x)
        return self.head(self.head(x))


def net() -> Net:
    torch.manual_seed(0)
    return Net()
