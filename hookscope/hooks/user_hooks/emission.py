"""``hookscope.emit``: record a value from a user hook."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.hooks.layers import Layer

EmitCallback = Callable[[Layer, int, str, Tensor], None]


@dataclass(frozen=True)
class HookContext:
    """The layer and the call at which a hook is running, for its emitted values."""

    layer: Layer
    call: int
    keep: EmitCallback | None


CURRENT_HOOK: ContextVar[HookContext | None] = ContextVar("hookscope_running_hook", default=None)


def emit(name: str, value: Tensor | float) -> None:
    """Record a value from a user hook.

    It is stored in the capture as ``<module>[:call]/<name>``, with the kind ``emitted``. A run that
    only verifies the recording stores nothing.

    Example:
        >>> import torch, hookscope
        >>> def largest(module, input, output):
        ...     hookscope.emit("largest", output.max())
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> shot = hookscope.capture(net, input=torch.ones(1, 2), layers="1", hooks=largest)
        >>> list(shot)
        ['1/largest', '1/output']
    """
    place = CURRENT_HOOK.get()
    if place is None:
        raise RequestError(
            f"hookscope.emit({name!r}, ...) was called outside a hook of a running recording.",
            "Call it in a function that is passed to --hook, or to hooks= in Python.",
        )
    if not name or "/" in name:
        raise RequestError(
            f"{name!r} is not a valid name for a value.", "Use text without a slash."
        )
    if name.partition(".")[0] in ("output", "input") or name.endswith((".grad", ".update")):
        raise RequestError(
            f"The name {name!r} is reserved for values that hookscope records.",
            "Choose another name.",
        )
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value, dtype=torch.float64 if type(value) is float else None)
        except (TypeError, ValueError, RuntimeError):
            raise RequestError(
                f"A {type(value).__name__} cannot be recorded as {name!r}.",
                "Give a tensor or a number.",
            ) from None
    if place.keep is not None and place.call:
        place.keep(place.layer, place.call, name, value)
