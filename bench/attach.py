"""Attaching to a model, beside hooks by hand: to 150 modules that do nothing, and to resnet50.

``python -m bench.attach SUBJECT PAIRS`` prints two times for each pair, in seconds of processor
time: with hookscope, and with hooks by hand. SUBJECT is ``identity``, 150 ``nn.Identity`` that are
recorded once, or ``one`` or ``all``: attaching to layer4 or to all layers of resnet50, which does
not run. The model was recorded before, as in a loop.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from time import process_time

import torch
import torchvision
from torch import Tensor, nn

import hookscope

COUNT = 150


def by_hand(model: nn.Module, names: set[str], run: Callable[[], object]) -> dict[str, Tensor]:
    """Return clones of the tensors that the modules return while ``run`` does."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, args: object, output: object) -> None:
            if isinstance(output, Tensor):
                kept[name] = output.detach().clone()

        return hook

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if name in names
    ]
    run()
    for handle in handles:
        handle.remove()
    return kept


def subject(name: str) -> tuple[nn.Module, list[str], Callable[[], object]]:
    """Return a model, the layers to record, and what runs."""
    if name == "identity":
        model: nn.Module = nn.Sequential(*(nn.Identity() for _ in range(COUNT)))
        x = torch.randn(1, 8)
        return model, ["*", "!(model)"], lambda: model(x)
    layers = ["layer4"] if name == "one" else ["*"]
    return torchvision.models.resnet50().eval(), layers, lambda: None


def main() -> None:
    """Print the times of each pair."""
    logging.disable(logging.WARNING)  # that nothing was recorded
    torch.set_num_threads(1)
    model, layers, run = subject(sys.argv[1])
    every = {name for name, _ in model.named_modules() if name}
    names = {"layer4"} if layers == ["layer4"] else every

    def recorded() -> None:
        with hookscope.record(model, layers=layers) as capture:
            run()
        assert len(capture) in (0, COUNT)

    def hooked() -> None:
        by_hand(model, names, run)

    with torch.no_grad():
        recorded()
        for _ in range(int(sys.argv[2])):
            times = []
            for way in (recorded, hooked):
                start = process_time()
                way()
                times.append(process_time() - start)
            print(*times)


if __name__ == "__main__":
    main()
