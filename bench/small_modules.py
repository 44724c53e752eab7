"""Recording 1,000 small modules, beside hooks written by hand that clone each output.

``python -m bench.small_modules KIND SCOPE PAIRS`` prints two times for each pair, in seconds of
processor time for one call of a module: with recording, and with the hooks by hand. KIND is
``outputs`` or ``gradients``. SCOPE is ``call``, the run of the model while the hooks are attached,
or ``whole``, which adds finding the layers, attaching and removing hooks, and the records.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import process_time

import torch
from torch import Tensor, nn

from hookscope.hooks.layers import layers_of
from hookscope.hooks.recorder import Recorder

COUNT = 1000

Recording = Callable[[nn.Module, bool], Iterator[Mapping[str, Tensor]]]


def model() -> nn.Sequential:
    """Return 1,000 modules that each take a few microseconds."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(COUNT)))


@contextmanager
def by_hand(net: nn.Module, gradients: bool) -> Iterator[Mapping[str, Tensor]]:
    """Clone the output of each module, and its gradient, while the block runs."""
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
    yield kept
    for handle in handles:
        handle.remove()


@contextmanager
def by_hookscope(net: nn.Module, gradients: bool) -> Iterator[Mapping[str, Tensor]]:
    """Record the same in a capture."""
    what = ("output", "output.grad") if gradients else ("output",)
    layers = [layer for layer in layers_of(net) if layer.module is not net]
    with Recorder(net, layers, what) as capture:
        yield capture
    capture.records  # noqa: B018  # makes them


def run(net: nn.Module, value: Tensor, gradients: bool) -> None:
    """Run the model, and its backward pass."""
    with torch.set_grad_enabled(gradients):
        output = net(value)
        if gradients:
            output.sum().backward()


def main() -> None:
    """Print the times of each pair."""
    kind, scope, pairs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    gradients = kind == "gradients"
    net, value = model(), torch.randn(4, 16)

    def seconds(recording: Callable[..., object]) -> tuple[float, Mapping[str, Tensor]]:
        net.zero_grad()
        gc.collect()
        begun = process_time()
        with recording(net, gradients) as kept:  # type: ignore[attr-defined]
            attached = process_time()
            run(net, value, gradients)
            called = process_time() - attached
        return (process_time() - begun if scope == "whole" else called), kept

    (_, expected), (_, found) = seconds(by_hand), seconds(by_hookscope)
    if set(found) != set(expected):
        raise SystemExit(f"they record other tensors: {set(found) ^ set(expected)}")
    if not all(torch.equal(found[key], tensor) for key, tensor in expected.items()):
        raise SystemExit("they record other values")
    del expected, found
    for _ in range(pairs):
        ours, plain = seconds(by_hookscope)[0], seconds(by_hand)[0]
        sys.stdout.write(f"{ours / COUNT} {plain / COUNT}\n")


if __name__ == "__main__":
    main()
