"""Each edit as one writes it by hand with PyTorch's own hooks, and nothing of hookscope's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def drawn(source: Callable[..., Tensor], shape: Any, position: int, key: str) -> Tensor:
    """The random numbers that docs/edits.md promises for seed 0."""
    digest = hashlib.sha256(f"0 {position} {key}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return source(shape, generator=generator)


def quantized(x: Tensor, bits: int) -> Tensor:
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = (high - low) / (2**bits - 1)
    zero = round(-low / step)
    # In float32 and with the reciprocal, as PyTorch's own kernel computes it.
    codes = torch.clamp(torch.round(x * torch.tensor(1 / step)) + zero, 0, 2**bits - 1)
    return (codes - zero) * torch.tensor(step)


def rounded_weight(weight: Tensor, bits: int) -> Tensor:
    """A weight with a symmetric grid for each row, as docs/edits.md has it."""
    step = weight.detach().abs().flatten(1).amax(1) / (2 ** (bits - 1) - 1)
    step = step.reshape(-1, *[1] * (weight.ndim - 1))
    return (weight.detach() / step).round() * step


def replaced(new: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda module, args, output: new(output)


def channels(numbers: list[int], new: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, numbers] = new(output[:, numbers])
        return output

    return hook


def at_gradient(new: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., None]:
    """A forward hook that changes the gradient at the output: ``new(gradient, output)``."""

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        kept = output.detach().clone()
        output.register_hook(lambda gradient: new(gradient, kept))

    return hook
