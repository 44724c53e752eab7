"""Models with the mistakes that people ask about most, each in a class of its own."""

import torch
import torch.nn.functional as F
from torch import nn


class Digits(nn.Module):
    """A linear layer made for other feature maps."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 4, 3)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(4 * 5 * 5, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        return self.fc1(x)


class Sequence(nn.Module):
    """The same in a Sequential."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 10),
        )

    def forward(self, x):
        return self.head(self.features(x))


class TwoWrong(nn.Module):
    """Two layers that do not follow each other."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(10, 20)
        self.b = nn.Linear(30, 5)

    def forward(self, x):
        return self.b(self.a(x))


class ByHand(nn.Module):
    """A product with a weight of its own, and no layer in it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 30))

    def forward(self, x):
        x = x.flatten(1)
        return F.linear(x, self.weight)


class Channels(nn.Module):
    """A convolution for colour images."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.stem(x)


class Inner(nn.Module):
    """A convolution that does not follow the one before."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3)
        self.second = nn.Conv2d(in_channels=16, out_channels=4, kernel_size=3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Deep(nn.Module):
    """More halvings than the image has bits."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, 1, 3, stride=2) for _ in range(4)])

    def forward(self, x):
        for conv in self.convs:
            x = conv(x)
        return x


class Pools(nn.Module):
    """A pooling window larger than what is left."""

    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(8)

    def forward(self, x):
        return self.pool(x)


class Normed(nn.Module):
    """Batch normalisation of another number of channels."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.bn = nn.BatchNorm2d(32)

    def forward(self, x):
        return self.bn(self.conv(x))


class LayerNormed(nn.Module):
    """Layer normalisation over another length."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.embed(x))


class Grouped(nn.Module):
    """Group normalisation of another number of channels."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = nn.GroupNorm(4, 32)

    def forward(self, x):
        return self.norm(self.conv(x))


class Words(nn.Module):
    """A vocabulary that is too small."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, ids):
        return self.out(self.embed(ids + 0))


class FloatWords(nn.Module):
    """An embedding of what is no longer whole."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, ids):
        return self.embed(ids / 1)


class Recurrent(nn.Module):
    """An LSTM of another input size."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(10, 20, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Gated(nn.Module):
    """A GRU that gets an image."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(input_size=8, hidden_size=4)

    def forward(self, x):
        return self.gru(x)[0]


class Attends(nn.Module):
    """Attention of another embedding."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Upward(nn.Module):
    """A transposed convolution of other channels."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 4, 2)

    def forward(self, x):
        return self.up(x)


class Double(nn.Module):
    """A layer in float32 that gets float64."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x.double())


class Whole(nn.Module):
    """A layer that gets whole numbers."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x.long())


class Elsewhere(nn.Module):
    """A layer that gets a tensor on another device."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x.to("meta"))


class NoBatch(nn.Module):
    """Flattens what it takes for the dimensions behind the batch."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.fc = nn.Linear(72, 10)

    def forward(self, x):
        return self.fc(torch.flatten(self.conv(x), 1))


class Positions(nn.Module):
    """Learned positions of one length."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.positions = nn.Parameter(torch.zeros(1, 16, 8))

    def forward(self, x):
        x = self.embed(x)
        return x + self.positions


class Twice(nn.Module):
    """One layer called twice, the second time on what it cannot take."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        x = self.fc(x)
        return self.fc(x)


class Views(nn.Module):
    """A view of another number of entries."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(144, 10)

    def forward(self, x):
        x = self.conv(x)
        return self.fc(x.view(-1, 144))


class Long(nn.Module):
    """Many layers, and the last one does not fit."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(50)])
        self.last = nn.Linear(5, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Chatty(nn.Module):
    """Prints and counts as it runs, draws numbers, and keeps a running value."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
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


class Catches(nn.Module):
    """Catches one failure, and has another."""

    def __init__(self):
        super().__init__()
        self.tried, self.used = nn.Linear(9, 2), nn.Linear(4, 3)
        self.last = nn.Linear(7, 1)

    def forward(self, x):
        try:
            x = self.tried(x)
        except RuntimeError:
            x = self.used(x)
        return self.last(x)


class Wide(nn.Linear):
    """A layer of the user's own, whose forward takes what the base class does not."""

    def forward(self, x):
        return super().forward(x.flatten(1))


class OwnLayer(nn.Module):
    """Uses a layer with a forward of its own."""

    def __init__(self):
        super().__init__()
        self.wide = Wide(12, 2)

    def forward(self, x):
        return self.wide(x)


class Block(nn.Module):
    """A part that a model has several times."""

    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, 4)

    def forward(self, x):
        return self.fc(x)


class Repeated(nn.Module):
    """The second block gets what the first one returns, which is narrower."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Block(6), Block(6)

    def forward(self, x):
        return self.second(self.first(x))


class Listed(nn.Module):
    """The same in a list that one line makes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 4) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class InList(nn.Module):
    """Layers that stand in a list, each with a call of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(9, 6)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def preprocess(image):
    """Grey, from 0 to 1."""
    return torch.tensor(list(image.convert("L").tobytes())).view(1, *image.size) / 255


def built():
    """Made by a function, without a class."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(123, 10))
