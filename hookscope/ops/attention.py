"""The weights of attention: seen where a model computes them, recomputed where a kernel hides them.

In the open, attention is a softmax whose result becomes the first factor of a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hookscope.keeper import ESCAPES, escapes
from hookscope.ops.kernels import KERNELS, TOLERANCES, Finding
from hookscope.tensors import walk

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
            self._followed[result] = result.detach().clone()
        elif name in _PASSES and isinstance(result, Tensor):
            weights = self._weights(args[0]) if args else None
            if weights is not None:
                self._followed[result] = weights
        elif name in _PRODUCTS:
            given = args[_PRODUCTS[name] :]
            factor = given[0] if given else None
            weights = self._weights(factor[0] if isinstance(factor, list | tuple) else factor)
            if weights is not None and _adds_up(weights):
                yield Finding(weights, OPEN)
        elif name in KERNELS:
            with torch.no_grad():
                yield KERNELS[name](name, function, args, kwargs, result)
        elif name == _LAYER_KERNEL or ("attention" in name and isinstance(result, Tensor | tuple)):
            yield Finding(None, name, f"inside {name}, which hookscope cannot recompute")

    def _weights(self, tensor: Any) -> Tensor | None:
        return self._followed.get(tensor) if isinstance(tensor, Tensor) else None


def _adds_up(weights: Tensor) -> bool:
    """Whether the last dimension is what the softmax was over."""
    wide = weights.double() if weights.device.type == "cpu" else weights.float()
    return bool(((wide.sum(-1) - 1).abs() <= TOLERANCES.get(weights.dtype, 0)).all())
