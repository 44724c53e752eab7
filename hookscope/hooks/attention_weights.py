"""The weights of attention: recorded where a model computes them, recomputed inside a fused kernel.

A softmax whose result is the first factor of a matrix product is attention. A fused kernel is
called again for its weights, or its formula is computed from its inputs. Such weights are recorded
only if they reproduce the output that the model got.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hookscope.files.signal_safety import signal_safe
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import FUNCTORCH_REASON, is_functorch_tensor, walk

VISIBLE_SOFTMAX = "a softmax in the model"

_SOFTMAX = {"softmax", "_softmax"}

# Functions between the softmax and the product that do not change the weights.
_PASSES = {
    *("dropout", "dropout_", "view", "reshape", "_unsafe_view", "flatten", "unflatten"),
    *("to", "type", "type_as", "float", "half", "bfloat16", "double", "_to_copy", "clone"),
    *("contiguous", "expand", "expand_as", "squeeze", "unsqueeze", "nan_to_num"),
}

_PRODUCTS = {"matmul": 0, "bmm": 0, "baddbmm": 1, "einsum": 1}  # position of the first factor

_LAYER_KERNEL = "_transformer_encoder_layer_fwd"

# The largest difference of two outputs, over the largest entry of the model's, that a different
# order of rounding explains. The largest measured one is a third of it: in float32 and float64 it
# grows with the scores, to 3e-5 in float32 for scores of 600; in the narrow types it is the
# rounding of the output itself.
TOLERANCES = {
    torch.float64: 1e-11,
    torch.float32: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


@dataclass(frozen=True)
class AttentionFinding:
    """Attention of one call of a function: its weights (..., L, S), or the reason why it has none.

    ``difference`` is None if the weights were not recomputed.
    """

    weights: Tensor | None
    source: str
    reason: str = ""
    difference: float | None = None
    tolerance: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the metadata of a file about it."""
        metadata = {"from": self.source}
        if self.difference is None:
            return metadata
        return metadata | {"difference": self.difference, "tolerance": self.tolerance}


def scaled_dot_product_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return softmax(query key^T scale + mask), and its product with ``value``.

    Formula and arguments are those of ``F.scaled_dot_product_attention``. In float32 or wider.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    if enable_gqa:
        key, value = (
            x.repeat_interleave(query.size(-3) // x.size(-3), dim=-3) for x in (key, value)
        )
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    blind = (scores == -math.inf).all(dim=-1, keepdim=True)
    weights = scores.softmax(dim=-1).masked_fill(blind, 0)
    return weights, weights @ value


def _scaled_dot_product(
    name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
) -> AttentionFinding:
    signature = inspect.signature(scaled_dot_product_weights)
    arguments = signature.bind(*args, **kwargs).arguments
    if arguments.get("dropout_p"):
        return _dropped(name, arguments["dropout_p"])
    if result.is_nested:
        return AttentionFinding(None, name, f"inside {name}, on nested tensors")
    # Autocast converts the inputs of the kernel to the type of the result.
    arguments |= {x: arguments[x].to(result.dtype) for x in ("query", "key", "value")}
    with signal_safe(torch.autocast(result.device.type, enabled=False)):
        weights, again = scaled_dot_product_weights(**arguments)
    return _checked(name, weights.to(result.dtype), again, result)


def _multi_head(
    name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
) -> AttentionFinding:
    bound = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.arguments["training"] and bound.arguments["dropout_p"]:
        return _dropped(name, bound.arguments["dropout_p"])
    bound.arguments |= {"need_weights": True, "average_attn_weights": False}
    again, weights = F.multi_head_attention_forward(*bound.args, **bound.kwargs)
    assert weights is not None
    return _checked(name, weights, again, result[0])


def _native_arguments(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: Any,
    num_head: Any,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: Any = None,
) -> None:
    """The signature of ``torch._native_multi_head_attention``, which has none for Python."""


def _native_multi_head(
    name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
) -> AttentionFinding:
    bound = inspect.signature(_native_arguments).bind(*args, **kwargs)
    bound.apply_defaults()
    bound.arguments |= {"need_weights": True, "average_attn_weights": False}
    again, weights = function(*bound.args, **bound.kwargs)
    return _checked(name, weights, again, result[0])


KERNELS: dict[str, Callable[..., AttentionFinding]] = {
    "scaled_dot_product_attention": _scaled_dot_product,
    "multi_head_attention_forward": _multi_head,
    "_native_multi_head_attention": _native_multi_head,
}


def _dropped(name: str, p: float) -> AttentionFinding:
    reason = f"inside {name} with dropout {p:g}, which is random in every call; run in eval mode"
    return AttentionFinding(None, name, reason)


def relative_difference(again: Tensor, output: Tensor) -> float:
    """Return the largest difference over the largest entry; NaN in both is not a difference."""
    blind = output.isnan() & again.isnan()
    wide = torch.promote_types(output.dtype, torch.float32)
    gap = torch.where(blind, 0, again.to(wide) - output).abs()
    largest = float(output.abs().nan_to_num(nan=0.0).max()) if output.numel() else 1.0
    return float(gap.max()) / (largest or 1.0) if output.numel() else 0.0


def _checked(name: str, weights: Tensor, again: Tensor, output: Tensor) -> AttentionFinding:
    """The weights, if they reproduce the output that the model got."""
    tolerance = TOLERANCES.get(output.dtype, 0.0)
    difference = relative_difference(again, output)
    if difference <= tolerance:
        return AttentionFinding(weights, name, difference=difference, tolerance=tolerance)
    reason = (
        f"recomputed from the inputs of {name}, they give an output that differs from the model's"
        f" by {difference:.2g} of its largest entry, more than rounding explains ({tolerance:g})"
    )
    return AttentionFinding(None, name, reason)


class AttentionTracker:
    """Finds the weights of attention in the calls of functions, one call after the other."""

    def __init__(self) -> None:
        self._followed = WeakTensorKeyDictionary()  # to the weights as the softmax returned them

    def find(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
    ) -> Iterator[AttentionFinding]:
        """Yield the attention in a call of ``function``, whose plain name is ``name``."""
        if any(is_functorch_tensor(tensor) for _, tensor in walk(result)):
            if name in KERNELS:
                yield AttentionFinding(None, name, FUNCTORCH_REASON)
        elif name in _SOFTMAX and isinstance(result, Tensor) and result.ndim > 1:
            self._follow(result, result.detach().clone())
        elif name in _PASSES and isinstance(result, Tensor):
            weights = self._weights(next(iter((*args, *kwargs.values())), None), result)
            if weights is not None:
                self._follow(result, weights)
        elif name in _PRODUCTS:
            factors = (*args, *kwargs.values())[_PRODUCTS[name] :]
            factor = factors[0] if factors else None
            factor = factor[0] if isinstance(factor, list | tuple) and factor else factor
            yield from self._from_product(factor)
        elif name in KERNELS:
            with grad_mode(False):
                try:
                    yield KERNELS[name](name, function, args, kwargs, result)
                except Exception as error:  # an error of the recomputation, not of the model
                    cause = str(error).partition("\n")[0]
                    yield AttentionFinding(
                        None, name, f"inside {name}, and they could not be recomputed: {cause}"
                    )
        elif name == _LAYER_KERNEL or ("attention" in name and isinstance(result, Tensor | tuple)):
            yield AttentionFinding(None, name, f"inside {name}, which hookscope cannot recompute")

    def _from_product(self, factor: Any) -> Iterator[AttentionFinding]:
        weights = self._weights(factor)
        if weights is not None and _adds_up(weights):
            yield AttentionFinding(weights, VISIBLE_SOFTMAX)
        elif weights is None and isinstance(factor, Tensor) and factor in self._followed:
            yield AttentionFinding(
                None, VISIBLE_SOFTMAX, "its weights were changed in place after the softmax"
            )

    def _follow(self, tensor: Tensor, weights: Tensor) -> None:
        self._followed[tensor] = (weights, version_counter(tensor))

    def _weights(self, tensor: Any, passed: Tensor | None = None) -> Tensor | None:
        """The weights in a tensor, unless it was changed since; ``passed`` is a function's result.

        A function that returns the tensor itself (dropout in eval mode) does not count as a change.
        """
        if not isinstance(tensor, Tensor) or tensor not in self._followed:
            return None
        weights, version = self._followed[tensor]
        changed = passed is not tensor and version_counter(tensor) != version
        return None if changed else weights


def _adds_up(weights: Tensor) -> bool:
    """Whether the softmax is over the last dimension."""
    wide = weights.double() if weights.device.type == "cpu" else weights.float()
    blind = wide.isnan().all(-1)  # a query that attends to nothing
    fine = (wide.sum(-1) - 1).abs() <= TOLERANCES.get(weights.dtype, 0)
    return bool((fine | blind).all())


def version_counter(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None if it does not count this."""
    return None if tensor.is_inference() else tensor._version
