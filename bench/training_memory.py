"""The peak memory of a watched training, which does not grow with its steps."""

from __future__ import annotations

from collections.abc import Iterator

from bench.processes import Cost, cost, python

TRAIN = """
import hookscope, torch
from torch import nn
layers = [layer for _ in range(10) for layer in (nn.Linear(32, 32), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters())
with hookscope.watch(model, optimizer, every=1, folder="run"):
    for _ in range({steps}):
        optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
"""


def growing(count: int) -> Iterator[tuple[Cost, Cost]]:
    """Measure 2,000 steps, each of them measured, against 200."""
    for _ in range(count):
        yield cost(python(TRAIN.format(steps=2000))), cost(python(TRAIN.format(steps=200)))
