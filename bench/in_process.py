"""Recording 15 layers of resnet18 in one process: hookscope.record beside hooks written by hand.

Prints the two times of each pair, in seconds, one pair a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter

import torch
import torchvision
from torch import Tensor, nn

import hookscope


def by_hand(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the output of each module of layer3, cloned as it was returned."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            kept[f"{name}:2" if name in kept else name] = output.clone()

        return hook

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if name.startswith("layer3.")
    ]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return kept


def by_hookscope(model: nn.Module, images: Tensor) -> hookscope.Capture:
    """Return the same as a capture."""
    with hookscope.record(model, layers=["layer3.*"]) as capture, torch.no_grad():
        model(images)
    return capture


def seconds(record: Callable[[nn.Module, Tensor], object], model: nn.Module, x: Tensor) -> float:
    """Return how long one recording takes."""
    start = perf_counter()
    record(model, x)
    return perf_counter() - start


def main(pairs: int) -> None:
    """Measure ``pairs`` pairs after three of each that do not count."""
    model = torchvision.models.resnet18(weights=None).eval()
    images = torch.randn(1, 3, 224, 224)
    ours, plain = by_hookscope(model, images), by_hand(model, images)
    if len(ours) != len(plain) or not all(map(torch.equal, ours.values(), plain.values())):
        sys.exit("the two recordings differ")
    for pair in range(-3, pairs):
        ours_took = seconds(by_hookscope, model, images)
        plain_took = seconds(by_hand, model, images)
        if pair >= 0:
            print(ours_took, plain_took)


if __name__ == "__main__":
    main(int(sys.argv[1]))
