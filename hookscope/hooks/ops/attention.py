"""The weights of attention: seen where a model computes them, recomputed where a kernel hides them.

In the open, attention is a softmax whose result becomes the first factor of a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hookscope.hooks.ops.kernels import KERNELS, TOLERANCES, Finding
from hookscope.tensors.nested import ESCAPES, escapes, walk

OPEN = "a softmax in the model"

_SOFTMAX = {"softmax", "_softmax"}
# What leaves weights weights on their way from the softmax to the product.
_PASSES = {
    *("dropout", "dropout_", "view", "reshape", "_unsafe_view", "flatten", "unflatten"),
    *("to", "type", "type_as", "float", "half", "bfloat16", "double", "_to_copy", "clone"),
    *("contiguous", "expand", "expand_as", "squeeze", "unsqueeze", "nan_to_num"),
}
_PRODUCTS = {"matmul": 0, "bmm": 0, "baddbmm": 1, "einsum": 1}  # the place of the first factor
_LAYER_KERNEL = "_transformer_encoder_layer_fwd"


class Attention:
    """Looks at one call of a function after the other for the weights of attention."""

    def __init__(self) -> None:
        self._followed = WeakTensorKeyDictionary()  # to the weights as the softmax returned them

    def see(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
    ) -> Iterator[Finding]:
        """Yield the attention that a call of ``function`` (plainly called ``name``) shows."""
        if any(escapes(tensor) for _, tensor in walk(result)):
            if name in KERNELS:
                yield Finding(None, name, ESCAPES)
        elif name in _SOFTMAX and isinstance(result, Tensor) and result.ndim > 1:
            self._follow(result, result.detach().clone())
        elif name in _PASSES and isinstance(result, Tensor):
            weights = self._weights(next(iter((*args, *kwargs.values())), None), result)
            if weights is not None:
                self._follow(result, weights)
        elif name in _PRODUCTS:
            given = (*args, *kwargs.values())[_PRODUCTS[name] :]
            factor = given[0] if given else None
            factor = factor[0] if isinstance(factor, list | tuple) and factor else factor
            yield from self._in_the_open(factor)
        elif name in KERNELS:
            with torch.no_grad():
                try:
                    yield KERNELS[name](name, function, args, kwargs, result)
                except Exception as error:  # what is recomputed is hookscope's, not the model's
                    told = str(error).partition("\n")[0]
                    yield Finding(None, name, f"inside {name}, and not to be recomputed: {told}")
        elif name == _LAYER_KERNEL or ("attention" in name and isinstance(result, Tensor | tuple)):
            yield Finding(None, name, f"inside {name}, which hookscope cannot recompute")

    def _in_the_open(self, factor: Any) -> Iterator[Finding]:
        weights = self._weights(factor)
        if weights is not None and _adds_up(weights):
            yield Finding(weights, OPEN)
        elif weights is None and isinstance(factor, Tensor) and factor in self._followed:
            yield Finding(None, OPEN, "its weights were changed in place after the softmax")

    def _follow(self, tensor: Tensor, weights: Tensor) -> None:
        self._followed[tensor] = (weights, version_of(tensor))

    def _weights(self, tensor: Any, passed: Tensor | None = None) -> Tensor | None:
        """The weights behind a tensor, unless it was changed since; ``passed`` is a function's own.

        A function that works in place and hands weights on as they are (dropout in eval mode)
        changes nothing.
        """
        if not isinstance(tensor, Tensor) or tensor not in self._followed:
            return None
        weights, version = self._followed[tensor]
        changed = passed is not tensor and version_of(tensor) != version
        return None if changed else weights


def _adds_up(weights: Tensor) -> bool:
    """Whether the last dimension is what the softmax was over."""
    wide = weights.double() if weights.device.type == "cpu" else weights.float()
    blind = wide.isnan().all(-1)  # a query that may look at nothing
    fine = (wide.sum(-1) - 1).abs() <= TOLERANCES.get(weights.dtype, 0)
    return bool((fine | blind).all())


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None for one that does not count it."""
    return None if tensor.is_inference() else tensor._version
