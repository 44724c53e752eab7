"""Recording 1,000 small modules, beside hooks written by hand that clone each output.

``python -m bench.small_modules KIND PAIRS`` prints two times for each pair, in seconds of processor
time for one module call with its share of the run: with recording, and with the hooks by hand. KIND
is ``outputs`` or ``gradients``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from time import process_time

import torch
from torch import Tensor, nn

from hookscope.hooks.layers import layers_of
from hookscope.hooks.recorder import Recorder

COUNT = 1000


def model() -> nn.Sequential:
    """Return 1,000 modules that each take a few microseconds."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(COUNT)))


def by_hand(net: nn.Module, value: Tensor, gradients: bool) -> dict[str, Tensor]:
    """Return a clone of the output of each module, and of its gradient."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def keep_gradient(gradient: Tensor) -> None:
            kept[f"{name}/output.grad"] = gradient.clone()

        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            kept[f"{name}/output"] = output.detach().clone()
            if gradients:
                output.register_hook(keep_gradient)

        return hook

    handles = [
        module.register_forward_hook(keep(name)) for name, module in net.named_modules() if name
    ]
    _run(net, value, gradients)
    for handle in handles:
        handle.remove()
    return kept


def by_hookscope(net: nn.Module, value: Tensor, gradients: bool) -> Mapping[str, Tensor]:
    """Return the same as a capture."""
    what = ("output", "output.grad") if gradients else ("output",)
    layers = [layer for layer in layers_of(net) if layer.module is not net]
    with Recorder(net, layers, what) as capture:
        _run(net, value, gradients)
    return capture


def _run(net: nn.Module, value: Tensor, gradients: bool) -> None:
    with torch.set_grad_enabled(gradients):
        output = net(value)
        if gradients:
            output.sum().backward()
    net.zero_grad()


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()
    begun = process_time()
    run()
    return process_time() - begun


def main() -> None:
    """Print the times of each pair."""
    kind, pairs = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    gradients = kind == "gradients"
    net, value = model(), torch.randn(4, 16)
    expected = by_hand(net, value, gradients)
    found = by_hookscope(net, value, gradients)
    if set(found) != set(expected):
        raise SystemExit(f"they record other tensors: {set(found) ^ set(expected)}")
    if not all(torch.equal(found[key], tensor) for key, tensor in expected.items()):
        raise SystemExit("they record other values")
    for _ in range(pairs):
        ours = _seconds(lambda: by_hookscope(net, value, gradients))
        plain = _seconds(lambda: by_hand(net, value, gradients))
        sys.stdout.write(f"{ours / COUNT} {plain / COUNT}\n")


if __name__ == "__main__":
    main()
