"""Ten small models, and changes of them that a fingerprint must find.

Each change names the layer at which it must be found: the first tensor that is computed otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.zoo import Module


class Residual(nn.Module):
    """A block whose sum is made in its own code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y * self.factor + x)


class Attention(nn.Module):
    """Attention with its softmax as a layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.softmax, self.drop = nn.Softmax(-1), nn.Dropout(0.1)
        self.heads, self.scale = heads, (width // heads) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = self.softmax(q @ k.transpose(-2, -1) * self.scale)
        return self.drop(self.proj((weights @ v).transpose(1, 2).reshape(x.shape)))


def _encoder(width: int) -> nn.Module:
    """A pre-norm block of a transformer."""

    def forward(self: Module, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.fc2(self.act(self.fc1(self.norm2(x)))))

    norms = {"norm1": nn.LayerNorm(width), "attention": Attention(width, 4)}
    layers = {"norm2": nn.LayerNorm(width), "fc1": nn.Linear(width, 2 * width), "act": nn.GELU()}
    layers |= {"fc2": nn.Linear(2 * width, width), "drop": nn.Dropout(0.1)}
    return Module(forward, **norms, **layers)


def _recurrent(kind: type[nn.RNNBase]) -> nn.Module:
    """An embedding, a recurrent layer and a head on its last state."""
    return Module(
        lambda self, x: self.head(self.drop(self.norm(self.rnn(self.embed(x))[0][:, -1]))),
        embed=nn.Embedding(50, 16),
        rnn=kind(16, 24, batch_first=True),
        norm=nn.LayerNorm(24),
        drop=nn.Dropout(0.1),
        head=nn.Linear(24, 5),
    )


def _residual() -> nn.Module:
    stem = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 10))
    return nn.Sequential(*stem, Residual(16), Residual(16), *head)


def _plain() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(24 * 64, 40), nn.Tanh(), nn.Dropout(0.1), nn.Linear(40, 10)),
    )


def _grouped() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()),
        *(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.Hardswish()),
        *(nn.Conv2d(16, 8, 1), nn.Dropout(0.1), nn.Flatten(), nn.LogSoftmax(1)),
    )


def _decoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.InstanceNorm2d(8), nn.LeakyReLU(0.1)),
        *(nn.ConvTranspose2d(8, 8, 2, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Dropout(0.1), nn.Conv2d(8, 3, 3, padding=1), nn.Sigmoid()),
    )


def _series() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(4, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ELU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(16, 16, 3, padding=1), nn.GELU(), nn.Dropout(0.1)),
        *(nn.Flatten(), nn.Linear(16 * 32, 6), nn.Softmax(-1)),
    )


def _dense() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(30, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8), nn.Softmax(-1)),
    )


def _transformer() -> nn.Module:
    return nn.Sequential(_encoder(32), _encoder(32), nn.LayerNorm(32), nn.Linear(32, 6))


def _attention() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), Attention(32, 2), nn.LayerNorm(32), nn.Softplus())


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (_plain, (2, 3, 32, 32)),
    "residual": (_residual, (2, 3, 16, 16)),
    "grouped": (_grouped, (2, 3, 16, 16)),
    "decoder": (_decoder, (2, 3, 16, 16)),
    "series": (_series, (2, 4, 64)),
    "dense": (_dense, (4, 30)),
    "transformer": (_transformer, (2, 10, 32)),
    "attention": (_attention, (2, 10, 20)),
    "gru": (lambda: _recurrent(nn.GRU), (2, 12)),
    "lstm": (lambda: _recurrent(nn.LSTM), (2, 12)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """Return a model in eval mode with statistics that are not trivial, and its input."""
    make, shape = NETS[name]
    torch.manual_seed(11)
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
    recurrent = name in ("gru", "lstm")
    return model.eval(), torch.randint(50, shape) if recurrent else torch.randn(shape)


class Mutant(NamedTuple):
    """A changed model, and the key of a tensor that is the first to change."""

    label: str
    model: nn.Module
    place: str


def mutants(name: str) -> list[Mutant]:
    """Return every change of the kinds below that fits a layer of a model."""
    found = []
    original, _ = build(name)
    for path, module in original.named_modules():
        for label, change in _changes(module):
            model = copy.deepcopy(original)
            replacement = change(model.get_submodule(path))
            if replacement is not None:
                owner, _, last = path.rpartition(".")
                setattr(model.get_submodule(owner), last, replacement)
            where = "relu:2/input.0" if label == "factor" else "softmax/input.0"
            place = f"{path}/output" if label not in ("factor", "scale") else f"{path}.{where}"
            found.append(Mutant(f"{name}: {label} of {path}", model, place))
    return found


def _changes(module: nn.Module) -> list[tuple[str, Callable[[nn.Module], nn.Module | None]]]:
    changes: list[tuple[str, Callable[[nn.Module], nn.Module | None]]] = []
    if hasattr(module, "eps"):
        changes.append(("epsilon", lambda m: setattr(m, "eps", m.eps * 5)))
    if isinstance(module, nn.ReLU | nn.GELU | nn.SiLU | nn.Hardswish | nn.ELU | nn.Tanh):
        other = nn.GELU("tanh") if isinstance(module, nn.GELU) else nn.LeakyReLU(0.01)
        changes.append(("activation", lambda m: other))
    if isinstance(module, nn.Conv2d) and module.padding != (0, 0):
        changes.append(("padding", _padded))
    if isinstance(module, nn.Softmax):
        changes.append(("axis", lambda m: setattr(m, "dim", -2 if m.dim == -1 else -1)))
    if isinstance(module, nn.Dropout):
        changes.append(("dropout on", lambda m: m.train() and None))
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d):
        changes += [("one weight", _one_weight), ("order", _order)]
    if isinstance(module, Residual):
        changes.append(("factor", lambda m: setattr(m, "factor", 1.001)))
    if isinstance(module, Attention):
        changes.append(("scale", lambda m: setattr(m, "scale", m.scale * 1.01)))
    return changes


def _padded(module: nn.Module) -> None:
    """Reflect at the border in place of zeros."""
    assert isinstance(module, nn.Conv2d)
    margins = [side for side in reversed(module.padding) for _ in range(2)]
    module.padding_mode, module._reversed_padding_repeated_twice = "reflect", margins


def _one_weight(module: nn.Module) -> None:
    """Change the first weight by 1%."""
    with torch.no_grad():
        module.weight.view(-1)[0] *= 1.01


def _order(module: nn.Module) -> None:
    """Swap two output channels."""
    with torch.no_grad():
        module.weight[[0, 1]] = module.weight[[1, 0]]
