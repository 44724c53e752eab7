"""Small models exported by torch, once for all tests of ONNX files: an export takes seconds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A convolution with its batch normalization, and a ReLU that is called twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(x)))
        y = y * 2 - 1
        return self.relu(self.drop(y) + x)


class Net(nn.Module):
    """A stem that is called on two images, blocks in a list, one of them called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
        self.blocks = nn.ModuleList([Block(4), Block(4)])
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        left = self.stem(left)
        right = self.stem(right)
        for block in self.blocks:
            left = block(left)
        right = self.blocks[0](right)
        tokens = self.norm((left + right).flatten(2).transpose(1, 2))
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head(mixed.mean(1)), mixed


def built() -> Net:
    """The net with statistics and weights under which no two modules have equal outputs."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Net().eval()
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 2)
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return net


def images() -> tuple[Tensor, Tensor]:
    """The inputs that the net is exported for."""
    generator = torch.Generator().manual_seed(4)
    left, right = (torch.randn(1, 3, 8, 8, generator=generator) for _ in range(2))
    return left, right


@dataclass(frozen=True)
class Exported:
    """A model and the files that it was exported to."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    optimized: Path
    unoptimized: Path
    older: Path


def export(model: nn.Module, inputs: tuple[Any, ...], path: Path, **options: Any) -> Path:
    """Export quietly; ``dynamo=False`` chooses the older exporter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"dynamo": True, "verbose": False} | options
        torch.onnx.export(model, inputs, path, **options)
    return path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The net, exported in three ways."""
    folder, net, inputs = tmp_path_factory.mktemp("onnx"), built(), images()
    return Exported(
        net,
        inputs,
        export(net, inputs, folder / "net.onnx"),
        export(net, inputs, folder / "unoptimized.onnx", optimize=False, external_data=False),
        export(net, inputs, folder / "older.onnx", dynamo=False),
    )
