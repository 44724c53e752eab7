"""How far the tensors of two models are apart, and the tensor that takes the place of another."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from hookscope.tensors.nested import as_dense
from hookscope.tensors.tensor_stats import dense_real, euclidean_norm

_TINY = 1e-100


def relative_error(a: Tensor, b: Tensor) -> float:
    """Return ``|a - b| / |a|`` with Euclidean norms, in double precision.

    Entries that are equal in both count as no error, infinite ones too; the smallest and the
    largest number of a dtype count as infinite, because masks have them. The result is infinite if
    an entry is finite in one of the two alone, or if A is zero and B is not.

    Example:
        >>> relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
        0.1
        >>> relative_error(torch.zeros(2), torch.zeros(2))
        0.0
    """
    b = b.to(a.device)
    if a is b or _is_equal(a, b):
        return 0.0
    plain = _plain_error(a, b)
    if plain is not None:
        return plain
    a, b = (real_numbers(x) for x in (a, b))
    is_equal = (a == b) | (a.isnan() & b.isnan())
    error = euclidean_norm(torch.where(is_equal, 0.0, a - b)).item()
    size = euclidean_norm(torch.where(a.isfinite(), a, 0.0)).item()
    if error == 0.0 or not math.isfinite(error):
        return error if error == 0.0 else math.inf
    return error / size if size else math.inf


def _is_equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def _plain_error(a: Tensor, b: Tensor) -> float | None:
    """The relative error of finite numbers of usual size, in a tenth of the time; else None."""
    if not (a.is_floating_point() and b.is_floating_point()):
        return None
    limit = min(torch.finfo(x.dtype).max for x in (a, b))
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    is_mixed = a.dtype != b.dtype
    a, b = a.to(dtype), b.to(dtype)
    if is_mixed and torch.equal(a, b):
        return 0.0
    norm = partial(torch.linalg.vector_norm, dtype=torch.float64)
    error, size = norm(a - b).item(), norm(a).item()
    # Squares of numbers below the first would vanish; no entry reaches the limit.
    return error / size if min(error, size) > _TINY and error + size < limit else None


def real_numbers(x: Tensor) -> Tensor:
    """Return the values in double precision; a complex number is two of them."""
    x = x.detach()
    x = dense_real(torch.view_as_real(x.resolve_conj()) if x.is_complex() else x)
    values = x.double()
    if not x.is_floating_point():
        return values
    limit = torch.finfo(x.dtype).max
    return torch.where(values.abs() >= limit, values.sign() * math.inf, values)


def in_place_of(like: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of ``x`` in another dtype, in which finite numbers stay finite.

    It is ``like`` itself if that has the same values.
    """
    if like.dtype == dtype and _is_equal(like, x):
        return like
    x = as_dense(x)
    if like.is_quantized:
        scale, zero = like.q_scale(), like.q_zero_point()
        return torch.quantize_per_tensor(x.to(like.device).float(), scale, zero, like.dtype)
    device = like.device
    new = x.to(device, dtype, copy=True)
    if _is_narrower(dtype, x.dtype):
        limit = torch.finfo(dtype).max
        new = torch.where(x.to(device).isinf(), new, new.clamp(-limit, limit))
    return new


def _is_narrower(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether numbers of another dtype can be beyond the largest of a floating-point dtype."""
    if not dtype.is_floating_point or dtype == other:
        return False
    return not other.is_floating_point or torch.finfo(dtype).max < torch.finfo(other).max
