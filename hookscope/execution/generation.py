"""A language model run step by step, by its own ``generate``, which calls it for each token."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from hookscope.errors import RequestError


def demand_generation(module: nn.Module, word: str, steps: int, method: str | None) -> None:
    """Refuse to generate where that cannot be.

    Raises:
        RequestError: the model has no ``generate``, ``steps`` is no positive number, or another
            method is to run.
    """
    if steps < 1:
        raise RequestError(f"{steps!r} is no number of tokens.", "Generate 1 or more.")
    if not callable(getattr(module, "generate", None)):
        raise RequestError(
            f"{word} has no generate, so it cannot be run token by token.",
            "Leave out --generate, or name a model with a language model's head.",
        )
    if method not in (None, "forward"):
        raise RequestError(
            "--generate and --method both say which method of the model runs.", "Leave out one."
        )


def generate(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], steps: int
) -> Any:
    """Return what ``module.generate`` returns for ``steps`` new tokens, the likeliest each time.

    Its calls of the module and of the modules in it run hooks, each under a number of its own.
    """
    function: Any = module.generate
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    greedy = {"do_sample": False} if open_ended or "do_sample" in parameters else {}
    return function(*args, **kwargs, max_new_tokens=steps, **greedy)
