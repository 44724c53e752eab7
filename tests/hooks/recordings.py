"""What many tests here do: record one run of a model, and ask what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

import hookscope

BOTH = ["input", "output"]


def summed(output: Tensor) -> Tensor:
    return output.sum()


def recorded(
    net: nn.Module, *inputs: Any, loss: Callable[[Any], Tensor] = summed, **options: Any
) -> hookscope.Capture:
    """The recording of one run, and with ``grads`` of the backward pass of a loss of its output."""
    with hookscope.record(net, **options) as capture:
        output = net(*inputs)
        if options.get("grads"):
            loss(output).backward()
    return capture


def reasons(capture: hookscope.Capture) -> dict[str, str]:
    """Why what is absent is absent, by key."""
    return {f"{absent.module}/{absent.what}": absent.reason for absent in capture.absent}


def hooks_left(net: nn.Module) -> int:
    """How many hooks the modules of a model have for the forward pass, and its parameters."""
    tensors = sum(len(p._backward_hooks or ()) for p in net.parameters())
    return tensors + sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())
