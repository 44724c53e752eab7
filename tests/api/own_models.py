"""Models in files of one's own, and their outputs by hooks written by hand."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import torch
from torch import Tensor, nn

import hookscope
from hookscope.hooks.capture import Capture
from tests.oracle.by_hand import outputs

HEAD = """
import random, threading
import numpy as np
import torch, torchvision
from torch import nn
from torch.utils.checkpoint import checkpoint
"""


TWICE = """
def __init__(self):
    super().__init__()
    self.first, self.act, self.second = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)
    self.head = nn.Linear(4, 2)
def forward(self, x):
    x = self.act(self.first(x))
    return self.head(self.act(self.second(x)))
"""
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
# From this size on, a capture finds out by itself which call is the last.
LARGE = torch.randn(1 << 20, 4, generator=torch.Generator().manual_seed(1))


def write(folder: Path, body: str) -> str:
    """Write a model file whose class ``Net`` has that body; return its spec."""
    path = folder / "own.py"
    code = textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(f"{HEAD}\nclass Net(nn.Module):\n{code}", encoding="utf-8")
    return f"{path}:Net"


def by_hand(
    module: nn.Module, value: Tensor, names: set[str], *, train: bool = False
) -> dict[str, Tensor]:
    """The outputs of all calls of some modules, by hooks that clone; the whole model runs."""
    before = module.training
    module.train(train)
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    found = outputs(module, value.clone())
    torch.random.set_rng_state(state)
    module.train(before)
    return {key: tensor for key, tensor in found.items() if re.split("[:/]", key)[0] in names}


def assert_same_as_by_hand(shot: Capture, spec: str, value: Tensor, *, train: bool = False) -> None:
    names = {layer.module for layer in shot.coverage.executed}
    expected = by_hand(hookscope.load_model(spec).module, value, names, train=train)
    assert shot.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(shot[key], tensor), key
