"""The Euclidean norm and the standard deviation of tensors whose squares leave the dtype's range.

In float32 the square of 1e20 is infinite and that of 1e-23 is 0, and so are PyTorch's norm and
standard deviation of such numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def euclidean_norm(x: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.linalg.vector_norm``, whose squares neither overflow nor vanish; differentiable.

    Where PyTorch's result is precise, it is returned as it is.

    Example:
        >>> euclidean_norm(torch.tensor([3e30, 4e30]))
        tensor(5.0000e+30)
    """
    if dtype is not None:
        x = x.to(dtype)
    return _in_range(lambda t: torch.linalg.vector_norm(t, dim=dim), x, dim)


def deviation(x: Tensor) -> Tensor:
    """``x.std(correction=0)``, whose squares neither overflow nor vanish.

    Example:
        >>> deviation(torch.tensor([-1e30, 1e30]))
        tensor(1.0000e+30)
    """
    return _in_range(lambda t: t.std(correction=0), x)


def _in_range(of: Callable[[Tensor], Tensor], x: Tensor, dim: int | None = None) -> Tensor:
    """``of(x)``, or ``of`` of the tensor divided by a power of two, times that power."""
    plain = of(x)
    info = torch.finfo(torch.promote_types(plain.dtype, torch.float32))  # in which halves are added
    low, high = info.tiny**0.5 / info.eps, info.max**0.5
    known = plain.detach()
    if not x.numel() or bool(((known > low) & (known < high)).all()):
        return plain
    sizes = x.detach().abs()
    largest = sizes.max() if dim is None else sizes.amax(dim, keepdim=True)
    sound = (largest > 0) & largest.isfinite()
    exponent = torch.where(sound, largest.log2().ceil(), 0)
    # As two factors: one power of two alone may be beyond the range of the dtype.
    first, second = torch.exp2((exponent / 2).floor()), torch.exp2((exponent / 2).ceil())
    scaled = of(x / first / second)
    return scaled * first.reshape(scaled.shape) * second.reshape(scaled.shape)
