"""Guided backpropagation: a ReLU lets back only what is positive, of what it let through.

J. T. Springenberg, A. Dosovitskiy, T. Brox, M. Riedmiller: Striving for Simplicity, 2015
(arXiv:1412.6806), section 3.4. A function mode finds every ReLU, be it a module, a function, or an
operator of a scripted or exported model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookscope.errors import RequestError
from hookscope.hooks import HookSet
from hookscope.ops.names import plain_name

_RELUS = ("relu", "relu_")


class _Guide(TorchFunctionMode):
    def __init__(self, hooks: HookSet) -> None:
        super().__init__()
        self.count = 0
        self._hooks = hooks

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # within it the mode is not in force
        result = func(*args, **(kwargs or {}))
        if plain_name(func) in _RELUS and isinstance(result, Tensor):
            self.count += 1
            if result.requires_grad:
                # What comes to the ReLU's result; what goes on is cut once more by the ReLU itself.
                self._hooks.listen(result, _positive)
        return result


def _positive(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.clamp(min=0)


@contextmanager
def guided(model: nn.Module) -> Iterator[None]:
    """Let only positive gradients back through the ReLUs that run within the block.

    Raises:
        RequestError: none ran, so that the gradient is no other than the plain one.
    """
    with HookSet(model) as hooks, _Guide(hooks) as guide:
        yield
    if not guide.count:
        raise RequestError(
            "No ReLU ran in this model, and guided backpropagation is about ReLUs alone.",
            "Choose --by saliency or integrated.",
        )
