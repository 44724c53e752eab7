"""Models with a fault planted in each, as a user would have them in a file of one's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.zoo import Module

# What is found in each: level, check, layer.
FOUND = {
    "log_of_negative": [("error", "nan", "2")],
    "zero_by_zero": [("error", "nan", "2")],
    "overflow": [("error", "inf", "2")],
    "all_masked": [("error", "nan", "2.weigh")],
    "infinite_parameter": [("error", "inf", "2.0")],
    "root_of_zero": [("error", "nan", "2")],
    "dead_relu": [("warning", "dead", "2.1"), ("warning", "vanishing", "2.0")],
    "saturated": [("warning", "saturated", "2.1")],
    "frozen": [("warning", "frozen", "2")],
    "side": [
        ("warning", "unused", "2.aside"),
        ("warning", "uncalled", "2.never"),
        ("note", "uncalled", "2.idle"),
    ],
    "in_training": [("note", "uncalled", "2.auxiliary")],
    "never_updated": [("warning", "batchnorm", "2.2")],
    "tied": [("note", "tied", "2.0")],
    "duplicated": [("warning", "duplicated", "2.layers.0")],
    "mixed": [("warning", "dtypes", "2.wide")],
    "clash": [("error", "run", "2"), ("warning", "dtypes", "2")],
    "sigmoids": [("warning", "vanishing", "2.30")],
    "exploding": [("warning", "exploding", "3")],
    "guarded_log": [],
    "masked": [],
    "added_mask": [],
    "sound": [],
}


def example_input() -> Tensor:
    """Return a batch of 32 rows of 8, the same each time."""
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


def function(compute: Callable[[Tensor], Tensor]) -> Module:
    return Module(lambda self, x: compute(x))


def block(between: Callable[[Tensor], Tensor]) -> Module:
    """Two layers with a function of one's own between them."""
    return Module(
        lambda self, x: self.second(between(self.first(x))),
        first=nn.Linear(16, 16),
        second=nn.Linear(16, 16),
    )


def attention(hidden: int) -> Module:
    """Attention with -inf where it is not to look."""

    def forward(self: Module, x: Tensor) -> Tensor:
        scores = self.score(x).masked_fill(torch.arange(16) < hidden, float("-inf"))
        return self.weigh(scores)

    return Module(forward, score=nn.Linear(16, 16), weigh=nn.Softmax(-1))


def within(middle: nn.Module) -> nn.Module:
    """A sound model around ``middle``, which takes and gives 16 features."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), middle, nn.Linear(16, 4))


def sound() -> nn.Module:
    return within(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))


def log_of_negative() -> nn.Module:
    return within(block(torch.log))


def zero_by_zero() -> nn.Module:
    return within(function(lambda x: (x - x) / (x - x)))


def overflow() -> nn.Module:
    """exp(12) is 162,755, and float16 ends at 65,504."""
    return within(function(lambda x: (x * 0 + 12).exp())).half()


def infinite_parameter() -> nn.Module:
    model = sound()
    with torch.no_grad():
        model[2][0].weight[3, 5] = float("inf")
    return model


def guarded_log() -> nn.Module:
    """A NaN that never gets anywhere: where() leaves it out."""
    return within(block(lambda x: torch.where(x > 0, torch.log(x), x)))


def masked() -> nn.Module:
    return within(attention(3))


def added_mask() -> nn.Module:
    """A module that hands on -inf, as a mask was added in it."""
    mask = torch.full((16, 16), float("-inf")).triu(1)[3]
    hidden = function(lambda x: x + mask.where(mask < 0, 0))
    return within(nn.Sequential(hidden, nn.Softmax(-1)))


def all_masked() -> nn.Module:
    """A softmax over nothing but -inf is 0/0."""
    return within(attention(16))


def root_of_zero() -> nn.Module:
    """Sound values, and a gradient of infinity times 0."""
    return within(block(lambda x: (x * 0).sqrt() * 0 + x))


def dead_relu() -> nn.Module:
    model = sound()
    nn.init.constant_(model[2][0].bias, -100)
    return model


def partly_dead() -> nn.Module:
    """A ReLU that is no module, with three of its sixteen units dead."""
    linear = nn.Linear(16, 16)
    with torch.no_grad():
        linear.bias[:3] = -100
        linear.bias[3:] = 0
    return within(Module(lambda self, x: torch.relu(self.linear(x)), linear=linear))


def saturated() -> nn.Module:
    model = within(nn.Sequential(nn.Linear(16, 16), nn.Sigmoid()))
    nn.init.normal_(model[2][0].weight, std=1000)
    return model


def frozen() -> nn.Module:
    model = sound()
    model[2].requires_grad_(False)
    return model


def side() -> nn.Module:
    """A branch whose result is thrown away, and two layers that are never called."""
    parts = {name: nn.Linear(16, 16) for name in ("main", "aside", "never")}
    middle = Module(lambda self, x: (self.aside(x), self.main(x))[1], **parts, idle=nn.Dropout())
    return within(middle)


def in_training() -> nn.Module:
    def forward(self: Module, x: Tensor) -> Tensor:
        if self.training:
            self.auxiliary(x)
        return self.main(x)

    return within(Module(forward, main=nn.Linear(16, 16), auxiliary=nn.Linear(16, 2)))


def never_updated() -> nn.Module:
    model = within(nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 16), nn.BatchNorm1d(16)))
    model[2][0].running_mean.fill_(0.5)
    return model


def tied() -> nn.Module:
    model = within(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))
    model[2][2].weight = model[2][0].weight
    return model


def duplicated() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return within(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))


def mixed() -> nn.Module:
    wide = nn.Linear(16, 16).double()
    return within(Module(lambda self, x: self.wide(x.double()).float(), wide=wide))


def clash() -> nn.Module:
    """The layer in half precision is handed single precision, and fails."""
    return within(nn.Linear(16, 16).half())


def sigmoids() -> nn.Module:
    layers = [part for _ in range(20) for part in (nn.Linear(16, 16), nn.Sigmoid())]
    return within(nn.Sequential(*layers))


def exploding() -> nn.Module:
    layers = [nn.Linear(16, 16) for _ in range(12)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=2)
    return within(nn.Sequential(*layers))
