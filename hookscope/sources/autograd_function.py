"""A custom ``torch.autograd.Function`` as a model, which hooks can watch."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import nn


class Applied(nn.Module):
    """Calls ``function.apply``; it has no parameters.

    Example:
        >>> class Twice(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x): return 2 * x
        >>> Applied(Twice)(torch.ones(2))
        tensor([2., 2.])
    """

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """Return what the function returns."""
        return self.function.apply(*args)

    def extra_repr(self) -> str:
        """Return the function's name."""
        return self.function.__name__


def is_function(value: object) -> TypeGuard[type[torch.autograd.Function]]:
    """Whether ``value`` is a class derived from ``torch.autograd.Function``."""
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)
