"""Functions that run without gradients, and leave the mode of PyTorch as it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from hookscope.tensors.signal_safety import signal_safe

P = ParamSpec("P")
T = TypeVar("T")


def without_grad(function: Callable[P, T]) -> Callable[P, T]:
    """Like ``torch.no_grad`` as a decorator, but an interrupt never leaves gradients disabled.

    Example:
        >>> @without_grad
        ... def double(x):
        ...     return 2 * x
        >>> double(torch.ones(1, requires_grad=True)).requires_grad, torch.is_grad_enabled()
        (False, True)
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with signal_safe(torch.no_grad()):
            return function(*args, **kwargs)

    return run
