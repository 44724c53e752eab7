"""A custom ``torch.autograd.Function`` as a model, which hooks can watch."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import nn


def applied(function: type[torch.autograd.Function]) -> nn.Module:
    """Return a module of the function's name that calls its ``apply``; it has no parameters.

    Example:
        >>> class Twice(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x): return 2 * x
        >>> applied(Twice)(torch.ones(2)), applied(Twice)
        (tensor([2., 2.]), Twice())
    """

    def forward(self: nn.Module, *args: Any) -> Any:
        return function.apply(*args)

    made: nn.Module = type(function.__name__, (nn.Module,), {"forward": forward})()
    return made


def is_function(value: object) -> TypeGuard[type[torch.autograd.Function]]:
    """Whether ``value`` is a class derived from ``torch.autograd.Function``."""
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)
