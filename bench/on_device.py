"""What recording, watching and extracting cost on a device, beside the same by hand, as ratios.

``python -m bench.on_device DEVICE`` prints one line for each kind of work, with the ratio that is
aimed at. On a GPU the model takes little of the host's time, and what hookscope takes shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
import torchvision
from torch import Tensor, nn

import hookscope
from bench.attach import by_hand
from bench.device_jobs import (
    TRAININGS,
    DeviceTraining,
    extract_photos,
    gpt2,
    on_device,
    synchronize,
    train,
)

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


WORKS = (
    DeviceWork(
        "GPT-2, all layers, bfloat16, 4x512 tokens",
        lambda: gpt2().bfloat16(),
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
    model, batch = on_device(work.model(), work.batch(), device)
    model.eval()
    rounds = 3 if device == "cpu" else ROUNDS
    with hookscope.record(model, layers=work.layers) as first:
        model(batch)
    names = {record.module for record in first.records}

    def recorded() -> None:
        with hookscope.record(model, layers=work.layers):
            model(batch)

    ways = (lambda: by_hand(model, names, lambda: model(batch)), recorded)
    times: list[list[float]] = [[], []]
    peaks = [0, 0]
    for _ in range(rounds):
        for n, way in enumerate(ways):
            times[n].append(_timed(way, device))
            peaks[n] = max(peaks[n], _peak(device))
    hand, ours = map(median, times)
    text = _line(work.name, hand, ours, work.time)
    if peaks[0]:
        text += f"  memory {peaks[1] / peaks[0]:5.2f} (goal {work.memory:.2f})"
    return text


def measure_training(work: DeviceTraining, device: str) -> Iterator[str]:
    """Yield the lines of a training: default steps, and each step."""
    for every, goal in ((0, work.goal), (1, work.goal_of_each)):
        steps = 2 if device == "cpu" else 20 if every else 100
        times: list[list[float]] = [[], []]
        for n in (0, 1, 1, 0):
            seconds = train(work, device, steps, every, watched=bool(n))
            times[n].append(seconds / steps)
        name = f"watch{' each step' if every else ''}: {work.name}"
        yield _line(name, min(times[0]), min(times[1]), goal)


def measure_photos(device: str) -> str:
    """Return the line of a folder of photos; the first of two runs is not counted."""
    count, workers = (16, 1) if device == "cpu" else (1024, 12)
    *_, (hand, ours) = (extract_photos(device, count, workers) for _ in range(2))
    return _line(f"extract: {count:,} photos, resnet50, bfloat16", hand, ours, 1.3)


def _line(name: str, hand: float, ours: float, goal: float) -> str:
    times = f"{1e3 * hand:8.1f} ms {1e3 * ours:8.1f} ms"
    return f"{name:44} {times}  {ours / hand:5.2f} (goal {goal:.2f})"


def _timed(way: Callable[[], object], device: str) -> float:
    synchronize(device)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    start = perf_counter()
    way()
    synchronize(device)
    return perf_counter() - start


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device.startswith("cuda") else 0


def main() -> None:
    """Print the lines."""
    print(f"{sys.argv[1]}, torch {torch.__version__}: by hand, with hookscope, ratio")
    with torch.no_grad():
        for work in WORKS:
            print(measure(work, sys.argv[1]), flush=True)
    for training in TRAININGS:
        for line in measure_training(training, sys.argv[1]):
            print(line, flush=True)
    print(measure_photos(sys.argv[1]), flush=True)


if __name__ == "__main__":
    main()
