"""Models with planted differences, as a user's own file of models has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo import Module


class Net(nn.Module):
    """Two convolutions, a pool and a linear layer, in stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.act = nn.ReLU(inplace=True)
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Dropout(0.5))
        self.head = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.act(self.stem(x)))
        return self.head(self.act(x).flatten(1))


class HalfLinear(nn.Linear):
    """A linear layer that computes in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.half(), self.weight.half(), self.bias.half()).to(x.dtype)


def half() -> Net:
    """The same net with its last layer in half precision."""
    torch.manual_seed(0)
    net = Net()
    head = HalfLinear(64, 3)
    head.load_state_dict(net.head.state_dict())
    net.head = head
    return net


def single() -> Net:
    torch.manual_seed(0)
    return Net()


def renamed() -> nn.Module:
    """The same net under other names."""
    net = single()
    return Module(
        lambda self, x: self.head(self.act(self.trunk(self.act(self.first(x)))).flatten(1)),
        **{"first": net.stem, "act": net.act, "trunk": net.body, "head": net.head},
    )


def with_nan() -> Net:
    net = single()
    with torch.no_grad():
        net.head.bias[1] = float("nan")
    return net


def broken() -> nn.Module:
    """Fails in its second layer."""
    parts = {"stem": nn.Conv2d(1, 4, 3), "head": nn.Linear(5, 3)}
    return Module(lambda self, x: self.head(self.stem(x)), **parts)


def example_input() -> Tensor:
    return torch.randn(2, 1, 8, 8)
