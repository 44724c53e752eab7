"""Guided backpropagation: a ReLU lets back only what is positive, of what it let through.

J. T. Springenberg, A. Dosovitskiy, T. Brox, M. Riedmiller: Striving for Simplicity, 2015
(arXiv:1412.6806), section 3.4. A function mode finds every ReLU, be it a module, a function, or an
operator of a scripted or exported model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookscope.errors import RequestError
from hookscope.hooks.ops.op_names import plain_name
from hookscope.hooks.registry import FunctionMode, HookSet
from hookscope.tensors.interrupts import signal_safe_contextmanager

_RELU = "relu"
_OTHERS = (
    *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish"),
    *("prelu", "relu6", "rrelu", "selu", "sigmoid", "silu", "softplus", "tanh"),
)


class _Guide(TorchFunctionMode):
    """Listens to every activation.

    ``ran`` counts the calls of each by name, ``passed`` those that a gradient came back to.
    """

    def __init__(self, hooks: HookSet) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self._hooks = hooks

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # within it the mode is not in force
        result = func(*args, **(kwargs or {}))
        name = plain_name(func).rstrip("_")
        if (name == _RELU or name in _OTHERS) and isinstance(result, Tensor):
            self.ran[name] += 1
            if result.requires_grad:
                # What comes to the ReLU's result; what goes on is cut once more by the ReLU itself.
                self._hooks.listen(result, partial(self._back, name))
        return result

    def _back(self, name: str, grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        self.passed[name] += 1
        return grad.clamp(min=0) if name == _RELU else None


@signal_safe_contextmanager
def guide_relus(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Let only positive gradients back through the ReLUs that run within the block.

    The parameters are to be frozen in it, so that gradients go from the score to the image only.

    Yields:
        What the metadata tell afterwards: ``relus``, how many were passed on that way, and
        ``unguided``, the other activations on it by name.

    Raises:
        RequestError: no ReLU was passed, so that the gradient is no other than the plain one.
    """
    told: dict[str, Any] = {}
    with HookSet(model) as hooks:
        guide = _Guide(hooks)
        with FunctionMode(guide):
            yield told
    others = {name: guide.passed[name] for name in sorted(guide.passed) if name != _RELU}
    told.update(relus=guide.passed[_RELU], unguided=others)
    if told["relus"]:
        return
    ran = guide.ran[_RELU]
    why = "No ReLU ran in this model"
    if ran:
        why = f"No ReLU lies between the image and the score ({ran} elsewhere)"
    names = ", ".join(f"{name} {count}" for name, count in others.items())
    raise RequestError(
        f"{why}{f', only other activations: {names}' if names else ''}.",
        "Guided backpropagation is about ReLUs and would give the plain gradient here: choose"
        " --by saliency for that, or --by integrated.",
    )
