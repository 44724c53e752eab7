"""Models whose rows depend on each other, or whose runs differ, and their sound counterparts."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import Module

WIDTH = 16


class Experts(nn.Module):
    """Each token goes to one of four experts, each of which takes a share of all tokens at most."""

    def __init__(self, capacity: float | None) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.capacity = capacity

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        result = torch.zeros_like(tokens)
        limit = len(tokens) if self.capacity is None else int(self.capacity * len(tokens) / 4)
        for number, expert in enumerate(self.experts):
            chosen = (self.router(tokens).argmax(-1) == number).nonzero().flatten()[:limit]
            if len(chosen):
                result[chosen] = expert(tokens[chosen])
        return x + result.view_as(x)


class Pooled(nn.Module):
    """The mean of token embeddings, with or without padding, or after what mixes them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 3)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.attend = nn.Softmax(-1)
        self.way = way

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        if self.way == "convolution":
            x = self.mix(x.mT).mT
        if self.way == "mean":
            return self.head(x.mean(1))
        real = attention_mask[..., None].to(x.dtype)
        if self.way == "attention":  # padding gets the mean of all positions, which nothing reads
            x = self.attend((x @ x.mT).masked_fill(real @ real.mT == 0, -1e9)) @ x
        return self.head((x * real).sum(1) / real.sum(1))


def sets() -> nn.Module:
    """What it computes depends on the order of a set of texts, which each process chooses."""
    names = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "theta", "omicron"}

    def forward(self: Module, x: Tensor) -> Tensor:
        x = self.linear(x)
        for name in names:
            x = torch.tanh(x) * len(name)
        return x

    return Module(forward, linear=nn.Linear(WIDTH, WIDTH))


def own_weights() -> nn.Module:
    """Its weights do not come from the seed."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    generator = torch.Generator()
    generator.seed()
    model[1].weight.data.normal_(generator=generator)
    return model


def own_generator() -> nn.Module:
    generator = torch.Generator()
    return Module(lambda self, x: x + torch.randn(x.shape, generator=generator))


def counting() -> nn.Module:
    calls: list[int] = []
    return Module(lambda self, x: x * (calls.append(1) or len(calls)))


def _noise(length: int) -> list[float]:
    return [byte / 255 for byte in os.urandom(length)]


# Each gets numbers that PyTorch did not compute; the function that reads them first.
OUTSIDE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "list": (lambda x: x + torch.tensor(_noise(WIDTH)), "tensor"),
    "bytes": (
        lambda x: x * torch.frombuffer(bytearray(os.urandom(WIDTH)), dtype=torch.uint8),
        "mul",
    ),
    "numpy array": (lambda x: x + torch.from_numpy(np.array(_noise(WIDTH), np.float32)), "add"),
    "numpy scalar": (lambda x: x * np.random.default_rng().random(dtype=np.float32), "mul"),
    "number": (lambda x: x.clone().mul_(random.SystemRandom().random()), "mul_"),
    "keyword": (lambda x: torch.clamp(x, max=-random.SystemRandom().random()), "clamp"),
}


def outside(name: str) -> nn.Module:
    read, _ = OUTSIDE[name]
    return Module(lambda self, x: read(x))


def unset_memory() -> nn.Module:
    """It overwrites memory that holds anything with numbers of its own generator."""
    generator = torch.Generator()
    return Module(lambda self, x: x + torch.empty(WIDTH).normal_(generator=generator))


class NoisyBackward(torch.autograd.Function):
    """Adds noise to the gradient alone, as a kernel does that adds in any order."""

    generator = torch.Generator()

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient + torch.randn(gradient.shape, generator=NoisyBackward.generator)


def noisy_backward() -> nn.Module:
    return Module(lambda self, x: NoisyBackward.apply(x))


def late_layer() -> nn.Module:
    """It calls its layer from the second time on."""
    calls: list[int] = []
    return Module(
        lambda self, x: x if calls.append(1) or len(calls) == 1 else self.inner(x),
        inner=nn.Identity(),
    )


def around(middle: nn.Module) -> nn.Module:
    """A model with a module under test as its part ``1``."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, 4)).eval()


def attention(name: str) -> nn.Module:
    """A module with attention over its input, whose mask has a name."""

    def attend(self: nn.Module, x: Tensor, **masks: Tensor) -> Tensor:
        mask = masks[name]
        scores = x @ x.mT
        scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -1e9)
        return F.softmax(scores, -1) @ x

    return Module(attend)
