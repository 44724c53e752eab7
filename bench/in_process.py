"""What hookscope does in one process, beside the same with hooks written by hand, on resnet18.

``python -m bench.in_process SUBJECT PAIRS`` prints the two times of each pair, in seconds, one pair
a line, after making sure that the two do the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
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


def edited_by_hand(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the output of each module of layer3 with layer2 halved, after a run without that."""
    with torch.no_grad():
        model(images)
    module = model.get_submodule("layer2")
    handle = module.register_forward_hook(lambda module, inputs, output: output * 0.5)
    kept = by_hand(model, images)
    handle.remove()
    return kept


def edited_by_hookscope(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the same as a capture, which runs the model without the edit too."""
    shot = hookscope.capture(model, layers=["layer3.*"], input=images, edits="layer2=scale:0.5")
    return {key: shot[key] for key in shot if key.startswith("layer3.")}


def ablated_by_hand(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return how far each of 20 convolutions, set to zero, moves the output; three clean runs."""
    moved = {}
    with torch.no_grad():
        clean, *_ = (model(images) for _ in range(3))
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d):
                handle = module.register_forward_hook(
                    lambda module, inputs, output: torch.zeros_like(output)
                )
                output = model(images)
                handle.remove()
                moved[name] = (output.double() - clean.double()).norm() / clean.double().norm()
    return moved


def ablated_by_hookscope(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the same by hookscope.ablate, which also holds class and score against each other."""
    found = hookscope.ablate(model, types=["Conv2d"], input=images, rank="output")
    moved = {one.layer: torch.tensor(one.output, dtype=torch.float64) for one in found.ablations}
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    return {name: moved[name] for name in names}


def operators(model: nn.Module, images: Tensor) -> hookscope.Capture:
    """Return what layer3 and the functions between its modules gave."""
    with hookscope.record(model, layers=["layer3.*"], ops=True) as capture, torch.no_grad():
        model(images)
    return capture


def mapped_by_hand(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return Grad-CAM at layer4 for class 3; a clean run with a graph."""
    kept: dict[str, Tensor] = {}
    module = model.get_submodule("layer4")
    handle = module.register_forward_hook(lambda module, inputs, output: kept.update(a=output))
    score = model(images)[:, 3].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept["a"])
    values = (gradient.mean((2, 3), keepdim=True) * kept["a"].detach()).sum(1).relu()
    large = F.interpolate(values.unsqueeze(1), images.shape[2:], mode="bilinear")
    return {"layer4/cam": values, "./cam": large.squeeze(1)}


def mapped_by_hookscope(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the same by hookscope.cam, which finds the layer."""
    shot = hookscope.cam(model, input=images, target=3)
    return {key: shot[key] for key in ("layer4/cam", "./cam")}


def named_by_hookscope(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the same where the layer is named."""
    shot = hookscope.cam(model, input=images, target=3, layer="layer4")
    return {key: shot[key] for key in ("layer4/cam", "./cam")}


def integrated_by_hand(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return integrated gradients of class 3 from zero, 16 points, and the scores at the ends."""
    places, weights = np.polynomial.legendre.leggauss(16)
    total = torch.zeros(images.shape, dtype=torch.float64)
    for place, weight in zip(places, weights, strict=True):
        here = (float(place + 1) / 2 * images).requires_grad_()
        (gradient,) = torch.autograd.grad(model(here)[:, 3].sum(), here)
        total += float(weight) / 2 * gradient.double()
    with torch.no_grad():
        model(images), model(torch.zeros_like(images))
    return {"./input.0.attribution": (total * images.double()).float()}


def integrated_by_hookscope(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the same by hookscope.cam."""
    shot = hookscope.cam(model, input=images, target=3, by="integrated", steps=16)
    return {"./input.0.attribution": shot["./input.0.attribution"]}


Work = Callable[[nn.Module, Tensor], Mapping[str, Tensor]]
SUBJECTS: dict[str, tuple[Work, Work]] = {
    "recording": (by_hookscope, by_hand),
    "editing": (edited_by_hookscope, edited_by_hand),
    "ablating": (ablated_by_hookscope, ablated_by_hand),
    "operators": (operators, by_hookscope),
    "map": (mapped_by_hookscope, mapped_by_hand),
    "named map": (named_by_hookscope, mapped_by_hand),
    "integral": (integrated_by_hookscope, integrated_by_hand),
}


def seconds(work: Work, model: nn.Module, x: Tensor) -> float:
    """Return how long one go takes."""
    start = perf_counter()
    work(model, x)
    return perf_counter() - start


def main(subject: str, pairs: int) -> None:
    """Measure ``pairs`` pairs after two of each that do not count."""
    model = torchvision.models.resnet18(weights=None).eval()
    images = torch.randn(1, 3, 224, 224)
    ours, plain = (work(model, images) for work in SUBJECTS[subject])
    values = [value for key, value in ours.items() if not key.rpartition("/")[2].startswith("add")]
    # Bit for bit, but for figures in float64, which two formulas round in their own ways.
    same = (
        torch.allclose(a, b, rtol=1e-12, atol=0) if a.dtype is torch.float64 else torch.equal(a, b)
        for a, b in zip(values, plain.values(), strict=False)
    )
    if len(values) != len(plain) or not all(same):
        sys.exit("the two differ")
    for pair in range(-2, pairs):
        took = [seconds(work, model, images) for work in SUBJECTS[subject]]
        if pair >= 0:
            print(*took)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
