"""The cost of watching a training: the same steps with and without ``hookscope.watch``.

``python -m bench.training MODEL EVERY STEPS PAIRS`` prints the seconds of each pair, watched and
bare, one pair a line. ``MODEL`` is ``resnet18`` (8 images of 224 pixels) or ``mlp`` (40 layers of
256 units, a batch of 128). With ``EVERY`` 0 the default steps are sampled, from step 50 on. The two
of a pair change places from pair to pair, and both are made to give the same losses.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter

import torch
import torchvision
from torch import Tensor, nn

import hookscope

START = 50  # steps before those that are timed: the default sampling is denser there


def mlp() -> tuple[nn.Module, Tensor]:
    """Return a network of 40 linear layers, and a batch."""
    layers = [layer for _ in range(39) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 10)), torch.randn(128, 256)


def resnet18() -> tuple[nn.Module, Tensor]:
    """Return resnet18, and a batch of images."""
    return torchvision.models.resnet18(num_classes=10), torch.randn(8, 3, 224, 224)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {"mlp": mlp, "resnet18": resnet18}


def train(name: str, every: int, steps: int, watched: bool) -> tuple[float, list[float]]:
    """Return the seconds of some steps of a training, and all losses."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    target = torch.randint(10, (len(batch),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    start = 2 if every else START

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        watching = hookscope.watch(model, optimizer, every=every or None, folder=path)
        with watching if watched else nullcontext():
            for _ in range(start):
                step()
            began = perf_counter()
            for _ in range(steps):
                step()
            seconds = perf_counter() - began
    return seconds, losses


def main() -> None:
    """Print the pairs."""
    name, every, steps, pairs = sys.argv[1], *map(int, sys.argv[2:])
    train(name, every, 2, watched=True)  # what is imported or compiled once
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        times = {watched: train(name, every, steps, watched) for watched in order}
        assert times[True][1] == times[False][1], "watching changed the losses"
        print(times[True][0], times[False][0])


if __name__ == "__main__":
    main()
