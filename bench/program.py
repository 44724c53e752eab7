"""The cost of looking into a program: the same calls of a model, followed and bare, in pairs.

``python -m bench.program MODEL MODE CALLS PAIRS`` prints the seconds of
each pair, one pair a line.
``MODE`` is ``list`` or ``capture``, which records one layer. ``MODEL`` is ``resnet18`` (one image
of 224 pixels) or ``small`` (1,000 modules that compute almost nothing: the worst case).
"""

from __future__ import annotations

import sys
from time import perf_counter

import torch
import torchvision
from torch import Tensor, nn

from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.program_options import ProgramOptions
from hookscope.training.followed_models import FollowedModels


def resnet18() -> tuple[nn.Module, Tensor, str]:
    """Return resnet18, an image, and a layer."""
    return torchvision.models.resnet18().eval(), torch.randn(1, 3, 224, 224), "layer3"


def small() -> tuple[nn.Module, Tensor, str]:
    """Return 1,000 linear layers of four units, a batch, and a layer."""
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(1000))), torch.randn(2, 4), "500"


def seconds(model: nn.Module, batch: Tensor, calls: int) -> float:
    """Return how long some calls take, after one that is not measured."""
    with torch.no_grad():
        model(batch)
        begun = perf_counter()
        for _ in range(calls):
            model(batch)
    return perf_counter() - begun


def followed(mode: str, layer: str, model: nn.Module, batch: Tensor, calls: int) -> float:
    """Return the same for calls that are followed."""
    options = ProgramOptions(list=mode == "list", capture=mode == "capture")
    following = FollowedModels(options, [layer], Interventions())
    following.start()
    try:
        return seconds(model, batch, calls)
    finally:
        following.end()


def main(name: str, mode: str, calls: int, count: int) -> None:
    """Print the seconds of pairs whose halves change places."""
    torch.manual_seed(0)
    model, batch, layer = {"resnet18": resnet18, "small": small}[name]()
    for number in range(count + 1):
        if number % 2:
            ours = followed(mode, layer, model, batch, calls)
            bare = seconds(model, batch, calls)
        else:
            bare = seconds(model, batch, calls)
            ours = followed(mode, layer, model, batch, calls)
        if number:  # the first warms up
            print(ours, bare)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
