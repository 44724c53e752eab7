"""Blocks and functions that run with or without gradients, and leave PyTorch's mode as it was."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from hookscope.files.signal_safety import SignalSafeContext, signal_safe

P = ParamSpec("P")
T = TypeVar("T")


def grad_mode(enabled: bool) -> SignalSafeContext[None]:
    """Enable or disable autograd within the block."""
    return signal_safe(torch.enable_grad() if enabled else torch.no_grad())


def without_grad(function: Callable[P, T]) -> Callable[P, T]:
    """Like ``torch.no_grad`` as a decorator, but an interrupt never leaves gradients disabled.

    It is not for generator functions, whose code runs after the call.

    Example:
        >>> @without_grad
        ... def double(x):
        ...     return 2 * x
        >>> double(torch.ones(1, requires_grad=True)).requires_grad, torch.is_grad_enabled()
        (False, True)
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with grad_mode(False):
            return function(*args, **kwargs)

    return run
