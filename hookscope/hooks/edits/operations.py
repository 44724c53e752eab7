"""The operations of edits: each returns a new tensor of the same shape and dtype.

All of them are differentiable. ``quantize`` passes the gradient unchanged within the range (the
straight-through estimator), because that of rounding is zero almost everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookscope.tensors.tensor_stats import deviation, euclidean_norm


@dataclass(frozen=True)
class EditSite:
    """The tensor that an operation is applied to, as far as operations need it."""

    key: str
    seed: int
    channel_dim: int
    stored: Tensor | None = None
    activation: Tensor | None = None

    def draw(self, source: Callable[..., Tensor], value: Tensor) -> Tensor:
        """Random numbers of the shape of ``value``, drawn on the CPU: the same for every device."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = source(value.shape, generator=generator)
        return drawn.to(value.device, value.real.dtype if value.is_complex() else value.dtype)


def edit_seed(seed: int, position: int, key: str) -> int:
    """Return the seed of the edit at ``position`` (from 0) of its list, for the tensor ``key``.

    So draws are the same in every run, and do not depend on other draws of the model or of edits.
    """
    digest = hashlib.sha256(f"{seed} {position} {key}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _zero(x: Tensor, argument: None, site: EditSite) -> Tensor:
    return x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0)


def _scale(x: Tensor, factor: float, site: EditSite) -> Tensor:
    return x * factor


def _clamp(x: Tensor, bounds: tuple[float, float], site: EditSite) -> Tensor:
    return x.clamp(*bounds)


def _noise(x: Tensor, size: tuple[float, bool], site: EditSite) -> Tensor:
    number, in_deviations = size
    if not in_deviations:
        return x + number * site.draw(torch.randn, x)
    if x.numel() < 2:
        raise ValueError("a single value has no standard deviation")
    # The amount of noise is a constant, which is not differentiated.
    return x + number * deviation(x.detach()) * site.draw(torch.randn, x)


def _mean(x: Tensor, over: str, site: EditSite) -> Tensor:
    if over == "channel":
        return _channel_mean(x, site)
    if over != "spatial" and x.ndim < 2:  # a vector of channels is one sample
        return x.clone()
    if over != "spatial":
        return x.mean(0, keepdim=True).expand_as(x).contiguous()
    space = [dim for dim in range(1, x.ndim) if dim != site.channel_dim]
    if not space:
        raise ValueError(
            f"a tensor of {x.ndim} dimensions has no spatial dimensions to average over"
        )
    return x.mean(space, keepdim=True).expand_as(x).contiguous()


def _channel_mean(x: Tensor, site: EditSite) -> Tensor:
    """The mean over the batch and every position; of one value it would be the value itself."""
    others = [dim for dim in range(x.ndim) if dim != site.channel_dim]
    if all(x.shape[dim] == 1 for dim in others):
        raise ValueError("each channel is a single value, which is its own mean")
    return x.mean(others, keepdim=True).expand_as(x).contiguous()


def _add(x: Tensor, source: Any, site: EditSite) -> Tensor:
    assert site.stored is not None
    return x + site.stored


def _patch(x: Tensor, source: Any, site: EditSite) -> Tensor:
    assert site.stored is not None
    everywhere = torch.ones((), dtype=torch.bool, device=x.device)
    return torch.where(everywhere, site.stored, x)


def _project(x: Tensor, source: Any, site: EditSite) -> Tensor:
    """Without the component along a vector, such as a direction of refusal (Arditi et al. 2024)."""
    assert site.stored is not None
    v, dim = site.stored, site.channel_dim
    length = (v * v).sum(dim, keepdim=True)
    if not bool(length.all()):
        raise ValueError("the vector is zero, so it has no direction")
    return x - v * ((x * v).sum(dim, keepdim=True) / length)


def _quantize(x: Tensor, bits: int, site: EditSite) -> Tensor:
    """Uniform affine quantization to ``bits`` bits and back, one range for the whole tensor.

    The range is from the smallest to the largest entry, widened to include 0, which is represented
    exactly (Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", equation 1 and section 3.1).
    """
    if not x.numel():
        return x.clone()
    least, most = (float(bound) for bound in x.detach().aminmax())
    least, most = min(least, 0.0), max(most, 0.0)
    top = 2**bits - 1
    scale = (most - least) / top
    if not scale < float("inf"):  # NaN is not below it either
        raise ValueError(f"the values range from {least:g} to {most:g}, which gives no step size")
    if scale == 0:
        return x.clone()
    zero = min(max(round(-least / scale), 0), top)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, top)


def _dropout(x: Tensor, share: float, site: EditSite) -> Tensor:
    """Inverted dropout, as ``torch.nn.functional.dropout`` has it (Srivastava et al. 2014)."""
    mask = site.draw(torch.rand, x.detach().float()) >= share
    return x * (mask.to(x.dtype) / (1 - share))


def _dtype(x: Tensor, name: str, site: EditSite) -> Tensor:
    narrow: torch.dtype = getattr(torch, name)
    rounded: Tensor = x.to(narrow, copy=True).to(x.dtype)
    return rounded


def _clip(g: Tensor, limit: float, site: EditSite) -> Tensor:
    return g.clamp(-limit, limit)


def _norm(g: Tensor, limit: float, site: EditSite) -> Tensor:
    """Clipping by norm, as ``torch.nn.utils.clip_grad_norm_`` has it (Pascanu et al. 2013)."""
    norm = euclidean_norm(g, dtype=torch.promote_types(g.dtype, torch.float32))
    share: Tensor = (limit / (norm + 1e-6)).clamp(max=1.0)
    return g * share.to(g.dtype)


def _sign(g: Tensor, argument: None, site: EditSite) -> Tensor:
    return g.sgn()


def _l2(g: Tensor, weight: float, site: EditSite) -> Tensor:
    assert site.activation is not None
    return g + weight * site.activation


def _l1(g: Tensor, weight: float, site: EditSite) -> Tensor:
    assert site.activation is not None
    return g + weight * site.activation.sgn()


def _reverse(g: Tensor, argument: None, site: EditSite) -> Tensor:
    """Gradient reversal (Ganin and Lempitsky 2015)."""
    return -g


Operation = Callable[[Tensor, Any, EditSite], Tensor]

OPERATIONS: dict[str, Operation] = {
    "zero": _zero,
    "scale": _scale,
    "clamp": _clamp,
    "noise": _noise,
    "mean": _mean,
    "add": _add,
    "patch": _patch,
    "project": _project,
    "quantize": _quantize,
    "dropout": _dropout,
    "dtype": _dtype,
    "clip": _clip,
    "norm": _norm,
    "sign": _sign,
    "l2": _l2,
    "l1": _l1,
    "reverse": _reverse,
}
