"""Floating-point values stored in fewer bytes: half precision, or int8 with one scale per row."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.extraction.axes import row_size
from hookscope.specs.extract_options import INT8

SCALE = ".scale"
_LARGEST = 127


class StorageCast:
    """Converts values to the dtype in which they are stored."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.lost: Tensor | int = 0  # stays on the device, so that nothing waits for it

    def __call__(self, name: str, rows: Tensor) -> dict[str, Tensor]:
        """Return the stored tensors of ``rows`` by key: ``name``, and the scale for int8."""
        if self.dtype == INT8:
            values, scale = to_int8(rows)
            self.lost = self.lost + (~rows.float().isfinite()).sum()
            return {name: values, f"{name}{SCALE}": scale}
        half = rows.to(getattr(torch, self.dtype))
        self.lost = self.lost + (half.isinf() & ~rows.isinf()).sum()
        return {name: half}

    def warning(self, key: str) -> str:
        """The message about the values that were lost."""
        if self.dtype == INT8:
            lost = f"{int(self.lost)} values are not finite or outside the range of float32"
            return f"{key}: {lost}, and int8 cannot represent them"
        return f"{key}: {int(self.lost)} values are too large for {self.dtype} and became infinite"


def to_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values and the float32 scale of each row; a value is about ``int8 * scale``.

    The scale is the row's largest finite magnitude over 127, so the error of a finite value is at
    most half the scale. Infinite values become the largest magnitude and NaN becomes 0. Values
    beyond the range of float32 are clamped to it.

    Example:
        >>> values, scale = to_int8(torch.tensor([[1.0, -0.5, 0.0]]))
        >>> values.tolist(), round(scale.item(), 6)
        ([[127, -64, 0]], 0.007874)
    """
    flat = rows.reshape(len(rows), row_size(rows))
    single, largest = flat.float(), torch.finfo(torch.float32).max
    flat = torch.where(flat.isinf(), single, single.clamp(-largest, largest))
    finite = torch.where(flat.isfinite(), flat, 0)
    peak = finite.abs().amax(1) if flat.shape[1] else flat.new_zeros(len(flat))
    scale = peak / _LARGEST
    steps = finite / torch.where(scale == 0, 1, scale).unsqueeze(1)
    steps = torch.where(flat.isinf(), flat.sign() * _LARGEST, steps.round())
    return steps.clamp(-_LARGEST, _LARGEST).to(torch.int8).reshape(rows.shape), scale
