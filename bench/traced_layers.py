"""The time that ``trace`` gives a layer, beside the layer alone.

``python -m bench.traced_layers`` prints both in seconds for each convolution and pooling of
resnet18 that takes over 1 ms. Layers that do little with much memory differ more, with where the
allocator finds it.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

import hookscope

REPEAT = 9


@torch.no_grad()
def alone(module: nn.Module, x: Tensor) -> float:
    """Return the median seconds of a layer that runs by itself, on an input just written."""
    times = []
    for _ in range(REPEAT):
        written = x.clone()
        began = perf_counter()
        module(written)
        times.append(perf_counter() - began)
    return median(times)


def main() -> None:
    """Print the seconds of each layer in a trace and alone."""
    torch.set_num_threads(1)
    net = hookscope.load_model("resnet18").module.eval()
    x, types = torch.randn(2, 3, 224, 224), ["Conv2d", "MaxPool2d"]
    inputs = hookscope.capture(net, input=x, what=["input"], types=types)
    trace = hookscope.trace(net, input=x, types=types, forward_only=True, repeat=REPEAT)
    assert trace.times is not None
    for layer in trace.times.layers:
        if layer.module != "." and layer.time.median > 1:
            module = net.get_submodule(layer.module)
            print(layer.time.median / 1e3, alone(module, inputs[f"{layer.module}/input.0"]))


if __name__ == "__main__":
    main()
