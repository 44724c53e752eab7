"""Models with the mistakes that people ask about most, and what is to be said of each.

A model has a line with its name, how it is run, the layer that fails, words of what that layer
expects, and what is proposed: a change of the file, a size of the input. The lines of its
``__init__`` and of its ``forward`` follow. The last line fails, or the one with ``# here``.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

TABLE = """
Digits | --shape 1x1x32x32 | fc1 | in_features=100 144 | nn.Linear(144, 10) | 1x1x28x28
    self.conv1 = nn.Conv2d(1, 4, 3)
    self.conv2 = nn.Conv2d(4, 4, 3)
    self.pool = nn.MaxPool2d(2)
    self.fc1 = nn.Linear(4 * 5 * 5, 10)

    x = self.pool(F.relu(self.conv1(x)))
    x = self.pool(F.relu(self.conv2(x)))
    x = torch.flatten(x, 1)
    return self.fc1(x)
Sequence | --shape 1x3x28x28 | head.1 | in_features=400 864 | nn.Linear(864, 120) |
    self.features = nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2))
    self.head = nn.Sequential(
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Linear(120, 10),
    )

    return self.head(self.features(x))
TwoWrong | --shape 1x10 | b | in_features=30 20 | nn.Linear(20, 5) |
    self.a = nn.Linear(10, 20)
    self.b = nn.Linear(30, 5)

    return self.b(self.a(x))
ByHand | --shape 2x5x5 | . | columns rows 30 25 | | 2x5x6
    self.weight = nn.Parameter(torch.randn(5, 30))

    x = x.flatten(1)
    return F.linear(x, self.weight)
Channels | --shape 1x1x16x16 | stem | 3 channels 1 | nn.Conv2d(1, 8, 3) | 1x3x16x16
    self.stem = nn.Conv2d(3, 8, 3)

    return self.stem(x)
Inner | --shape 1x1x9x9 | b | in_channels=16 8 | nn.Conv2d(8, 4, kernel_size=3) |
    self.a = nn.Conv2d(1, 8, 3)
    self.b = nn.Conv2d(16, 4, kernel_size=3)

    return self.b(torch.relu(self.a(x)))
Deep | --shape 1x1x20x20 | convs.3 | kernel 3x3 1x1 | | 1x1x32x32
    self.convs = nn.ModuleList([nn.Conv2d(1, 1, 3, stride=2) for _ in range(4)])

    for conv in self.convs:
        x = conv(x)  # here
    return x
Pools | --shape 1x1x6x6 | pool | kernel 8x8 6x6 | | 1x1x8x8
    self.pool = nn.MaxPool2d(8)

    return self.pool(x)
Normed | --shape 1x3x8x8 | bn | num_features=32 16 | nn.BatchNorm2d(num_features=16) |
    self.conv = nn.Conv2d(3, 16, 3)
    self.bn = nn.BatchNorm2d(num_features=32)

    return self.bn(self.conv(x))
LayerNormed | --shape 1x3x8 | norm | normalized_shape 16 24 | nn.LayerNorm(24) |
    self.embed = nn.Linear(8, 24)
    self.norm = nn.LayerNorm(16)

    return self.norm(self.embed(x))
Grouped | --shape 1x3x8x8 | norm | num_channels=32 16 | nn.GroupNorm(4, 16) |
    self.conv = nn.Conv2d(3, 16, 3)
    self.norm = nn.GroupNorm(4, 32)

    return self.norm(self.conv(x))
Words | --input ints:1x5:19-20 | embed | 10 19 0 9 | nn.Embedding(20, 4) |
    self.embed = nn.Embedding(10, 4)
    self.out = nn.Linear(4, 2)

    return self.out(self.embed(x + 0))
FloatWords | --input ints:1x5:0-9 | embed | int64 int32 float32 | |
    self.embed = nn.Embedding(10, 4)

    return self.embed(x / 1)
Recurrent | --shape 1x5x8 | lstm | input_size=10 8 | nn.LSTM(8, 20, batch_first=True) | 1x5x10
    self.lstm = nn.LSTM(10, 20, batch_first=True)

    return self.lstm(x)[0]
Gated | --shape 1x1x8x8 | gru | dimensions 2 3 4 1x1x8x8 | | 1x8x8
    self.gru = nn.GRU(input_size=8, hidden_size=4)

    return self.gru(x)[0]
Attends | --shape 1x5x8 | attention | query embed_dim=16 8 | | 1x5x16
    self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    return self.attention(x, x, x)[0]
Upward | --shape 1x4x6x6 | up | 8 channels 4 | nn.ConvTranspose2d(4, 4, 2) |
    self.up = nn.ConvTranspose2d(8, 4, 2)

    return self.up(x)
Double | --shape 1x4 | fc | float32 float64 x.to(torch.float32) layer.to(torch.float64) | |
    self.fc = nn.Linear(4, 2)

    return self.fc(x.double())
Whole | --shape 1x4 | fc | float32 int64 x.to(torch.float32) | |
    self.fc = nn.Linear(4, 2)

    return self.fc(x.long())
Elsewhere | --shape 1x4 | fc | cpu meta | |
    self.fc = nn.Linear(4, 2)

    return self.fc(x.to("meta"))
NoBatch | --shape 1x8x8 | fc | in_features=72 36 | nn.Linear(36, 10) | 1x1x8x8
    self.conv = nn.Conv2d(1, 2, 3)
    self.fc = nn.Linear(72, 10)

    return self.fc(torch.flatten(self.conv(x), 1))
Positions | --shape 1x20x4 | . | | | 1x16x4
    self.embed = nn.Linear(4, 8)
    self.positions = nn.Parameter(torch.zeros(1, 16, 8))

    x = self.embed(x)
    return x + self.positions
Twice | --shape 1x6 | fc | in_features=6 4 | |
    self.fc = nn.Linear(6, 4)

    x = self.fc(x)
    return self.fc(x)
Views | --shape 1x1x10x10 | . | | | 1x1x8x8
    self.conv = nn.Conv2d(1, 4, 3)
    self.fc = nn.Linear(144, 10)

    x = self.conv(x)
    return self.fc(x.view(-1, 144))
Long | --shape 1x4 | last | in_features=5 4 | nn.Linear(4, 1) |
    self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(50)])
    self.last = nn.Linear(5, 1)

    for layer in self.layers:
        x = layer(x)
    return self.last(x)
Catches | --shape 1x4 | last | in_features=7 3 | nn.Linear(3, 1) |
    self.tried, self.used = nn.Linear(9, 2), nn.Linear(4, 3)
    self.last = nn.Linear(7, 1)

    try:
        x = self.tried(x)
    except RuntimeError:
        x = self.used(x)
    return self.last(x)
OwnLayer | --shape 1x5x2 | wide | columns rows 12 10 | | 1x6x2
    self.wide = Wide(12, 2)

    return self.wide(x)
InList | --shape 1x6 | layers.1 | in_features=9 8 | nn.Linear(8, 6) |
    self.layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(9, 6)])

    for layer in self.layers:
        x = layer(x)  # here
    return x
"""

OTHERS = '''
import torch
import torch.nn.functional as F
from torch import nn


def built():
    """Made by a function, without a class."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(123, 10))


def preprocess(image):
    """Grey, from 0 to 1."""
    return torch.tensor(list(image.convert("L").tobytes())).view(1, *image.size) / 255


class Wide(nn.Linear):
    """A layer of the user's own, whose forward takes what the base class does not."""

    def forward(self, x):
        return super().forward(x.flatten(1))


class Block(nn.Module):
    """A part that a model has several times."""

    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, 4)

    def forward(self, x):
        return self.fc(x)


def repeated():
    """The second block gets what the first one returns, which is narrower."""
    return nn.Sequential(*[Block(6) for _ in range(2)])


class Chatty(nn.Module):
    """Prints and counts as it runs, draws numbers, and keeps a running value."""

    def __init__(self):
        super().__init__()
        self.bn, self.drop = nn.BatchNorm1d(4), nn.Dropout()
        self.fc = nn.Linear(5, 1)

    def forward(self, x):
        print("forward of Chatty")
        return self.fc(self.drop(self.bn(x)))


class Moody(nn.Module):
    """Fails in another place each time."""

    times = 0

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        Moody.times += 1
        x = self.a(x if Moody.times % 2 else x[:, :3])
        return self.b(x[:, :2])
'''


@dataclass(frozen=True)
class Case:
    """A broken model, how it is run, and what is to be said."""

    model: str
    options: str
    layer: str
    expected: list[str]
    change: str
    size: str
    line: str
    code: str = ""

    @property
    def command(self) -> str:
        return f"hookscope capture broken_models.py:{self.model} {self.options} --json"


def _case(head: str, body: str) -> Case:
    model, options, layer, expected, change, size = (part.strip() for part in head.split("|"))
    lines = [line.strip() for line in body.strip().splitlines()]
    [failing] = [x.removesuffix("  # here") for x in lines if x.endswith("# here")] or lines[-1:]
    if model == "OwnLayer":  # which fails in the code of its layer
        failing = "return super().forward(x.flatten(1))"
    made, forward = textwrap.dedent(body.replace("  # here", "")).split("\n\n")
    code = (
        f"class {model}(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"{textwrap.indent(made, ' ' * 8)}\n\n"
        f"    def forward(self, x):\n{textwrap.indent(forward, ' ' * 8)}"
    )
    return Case(model, options, layer, expected.split(), change, size, failing, code)


_PARTS = re.split(r"(?m)^(\w.*)\n", TABLE)[1:]
CASES = [_case(head, body) for head, body in zip(_PARTS[::2], _PARTS[1::2], strict=True)]
TEXT = "\n\n".join([OTHERS, *(case.code for case in CASES)])
CASES.append(
    Case(*("built", "--shape 1x1x8x8", "2", ["123", "144"]), "nn.Linear(144, 10)", "", line="")
)
