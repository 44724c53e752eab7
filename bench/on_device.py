"""What recording costs on a device: the time and the memory of the same hooks by hand, as ratios.

``python -m bench.on_device DEVICE`` prints one line for each kind of work, with the ratio that is
aimed at. On a GPU the model takes little of the host's time, and what hookscope takes shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
import torchvision
from torch import Tensor, nn

import hookscope
from bench.attach import by_hand

ROUNDS = 15


@dataclass(frozen=True)
class DeviceWork:
    """A model that is recorded, and the goals for time and memory."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    layers: str
    time: float
    memory: float = 1.05


def gpt2() -> nn.Module:
    """Return GPT-2 with random weights, in bfloat16."""
    import transformers

    config = transformers.GPT2Config(use_cache=False)
    return transformers.GPT2LMHeadModel(config).bfloat16()


WORKS = (
    DeviceWork(
        "GPT-2, all layers, bfloat16, 4x512 tokens",
        gpt2,
        lambda: torch.randint(50_000, (4, 512)),
        "*",
        1.15,
    ),
    DeviceWork(
        "resnet50, all layers, 32 images",
        torchvision.models.resnet50,
        lambda: torch.randn(32, 3, 224, 224),
        "*",
        1.10,
        1.02,
    ),
    DeviceWork(
        "resnet50, layer4, one image",
        torchvision.models.resnet50,
        lambda: torch.randn(1, 3, 224, 224),
        "layer4",
        1.05,
    ),
)


def measure(work: DeviceWork, device: str) -> str:
    """Return the line of one kind of work."""
    model, batch = work.model().eval().to(device), work.batch().to(device)
    with hookscope.record(model, layers=work.layers) as first:
        model(batch)
    names = {record.module for record in first.records}

    def recorded() -> None:
        with hookscope.record(model, layers=work.layers):
            model(batch)

    ways = (lambda: by_hand(model, names, lambda: model(batch)), recorded)
    times: list[list[float]] = [[], []]
    peaks = [0, 0]
    for _ in range(ROUNDS):
        for n, way in enumerate(ways):
            times[n].append(_timed(way, device))
            peaks[n] = max(peaks[n], _peak(device))
    hand, ours = map(median, times)
    text = f"{work.name:44} {1e3 * hand:8.1f} ms {1e3 * ours:8.1f} ms"
    text += f"  {ours / hand:5.2f} (goal {work.time:.2f})"
    if peaks[0]:
        text += f"  memory {peaks[1] / peaks[0]:5.2f} (goal {work.memory:.2f})"
    return text


def _timed(way: Callable[[], object], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = perf_counter()
    way()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return perf_counter() - start


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device.startswith("cuda") else 0


def main() -> None:
    """Print the lines."""
    print(f"{sys.argv[1]}, torch {torch.__version__}: by hand, with hookscope, ratio")
    with torch.no_grad():
        for work in WORKS:
            print(measure(work, sys.argv[1]), flush=True)


if __name__ == "__main__":
    main()
