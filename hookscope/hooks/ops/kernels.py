"""Attention inside a fused kernel: asked for again, or its formula worked out from its inputs.

Without autograd, and without any random number. Only weights whose output is the one that the model
got are given.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# The largest difference of two outputs, over the largest entry of the model's, that rounding in
# another order accounts for. The most that was measured is a third of it: in the wide types it
# grows with the scores, to 3e-5 in float32 for scores of 600; in the narrow ones it is the rounding
# of the output itself.
TOLERANCES = {
    torch.float64: 1e-11,
    torch.float32: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


@dataclass(frozen=True)
class Finding:
    """Attention of one call of a function: its weights, or the reason why there are none.

    ``weights`` are of shape (..., L, S): for each of L queries the shares of S keys. ``difference``
    is None for those that were seen and not recomputed.
    """

    weights: Tensor | None
    source: str
    reason: str = ""
    difference: float | None = None
    tolerance: float | None = None

    def to_json(self) -> dict[str, Any]:
        """What a file's metadata tell of it."""
        told = {"from": self.source}
        if self.difference is None:
            return told
        return told | {"difference": self.difference, "tolerance": self.tolerance}


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

    The formula is that in the documentation of ``F.scaled_dot_product_attention``, whose arguments
    these are; a query that may look at nothing has zeros, as there. Computed in float32 at least.

    Args:
        query: (..., heads, L, E).
        key: (..., heads, S, E), with ``enable_gqa`` of fewer heads.
        value: (..., heads, S, Ev), as many heads as ``key``.
        attn_mask: bool (true where a query may look) or added to the scores.
        dropout_p: not heeded.
        is_causal: let query i look at keys 0 to i alone.
        scale: 1/sqrt(E) if None.
        enable_gqa: let each head of ``key`` serve several of ``query``, in their order.

    Returns:
        Weights (..., heads, L, S), and outputs (..., heads, L, Ev).
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
) -> Finding:
    signature = inspect.signature(scaled_dot_product_weights)
    given = signature.bind(*args, **kwargs).arguments
    if given.get("dropout_p"):
        return _dropped(name, given["dropout_p"])
    if result.is_nested:
        return Finding(None, name, f"inside {name}, on nested tensors")
    # Autocast hands the kernel its inputs in the type of the result.
    given |= {x: given[x].to(result.dtype) for x in ("query", "key", "value")}
    with torch.autocast(result.device.type, enabled=False):
        weights, again = scaled_dot_product_weights(**given)
    return _checked(name, weights.to(result.dtype), again, result)


def _multi_head(
    name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
) -> Finding:
    given = inspect.signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    given.apply_defaults()
    asked = given.arguments
    if asked["training"] and asked["dropout_p"]:
        return _dropped(name, asked["dropout_p"])
    asked |= {"need_weights": True, "average_attn_weights": False}
    again, weights = F.multi_head_attention_forward(*given.args, **given.kwargs)
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
) -> Finding:
    given = inspect.signature(_native_arguments).bind(*args, **kwargs)
    given.apply_defaults()
    given.arguments |= {"need_weights": True, "average_attn_weights": False}
    again, weights = function(*given.args, **given.kwargs)
    return _checked(name, weights, again, result[0])


KERNELS: dict[str, Callable[..., Finding]] = {
    "scaled_dot_product_attention": _scaled_dot_product,
    "multi_head_attention_forward": _multi_head,
    "_native_multi_head_attention": _native_multi_head,
}


def _dropped(name: str, p: float) -> Finding:
    reason = f"inside {name} with dropout {p:g}, which draws anew each time; run in eval mode"
    return Finding(None, name, reason)


def _difference(again: Tensor, output: Tensor) -> float:
    """The largest difference over the largest entry; NaN in the same places is none."""
    blind = output.isnan() & again.isnan()
    wide = torch.promote_types(output.dtype, torch.float32)
    gap = torch.where(blind, 0, again.to(wide) - output).abs()
    largest = float(output.abs().nan_to_num(nan=0.0).max()) if output.numel() else 1.0
    return float(gap.max()) / (largest or 1.0) if output.numel() else 0.0


def _checked(name: str, weights: Tensor, again: Tensor, output: Tensor) -> Finding:
    """The weights, if the output that comes with them is the one that the model got."""
    tolerance = TOLERANCES.get(output.dtype, 0.0)
    difference = _difference(again, output)
    if difference <= tolerance:
        return Finding(weights, name, difference=difference, tolerance=tolerance)
    reason = (
        f"recomputed from the inputs of {name} they give an output that differs from the model's by"
        f" {difference:.2g} of its largest entry; up to {tolerance:g} is rounding"
    )
    return Finding(None, name, reason)
