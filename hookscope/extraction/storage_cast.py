"""Floating-point values in fewer bytes: half precision, or int8 with one scale for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.extraction.axes import row_size
from hookscope.specs.reduction import INT8

SCALE = ".scale"
_LARGEST = 127


def to_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values and the float32 scale of each row; a value is about ``int8 * scale``.

    The scale is the row's largest finite magnitude over 127, so no finite value is off by more than
    half of it. Infinite ones become that largest magnitude, NaN becomes 0, and what float32 is too
    small for becomes the largest that it holds.

    Example:
        >>> values, scale = to_int8(torch.tensor([[1.0, -0.5, 0.0]]))
        >>> values.tolist(), round(scale.item(), 6)
        ([[127, -64, 0]], 0.007874)
    """
    flat = rows.reshape(len(rows), row_size(rows))
    single, largest = flat.float(), torch.finfo(torch.float32).max
    flat = torch.where(flat.isinf(), single, single.clamp(-largest, largest))
    finite = torch.where(flat.isfinite(), flat, 0)
    top = finite.abs().amax(1) if flat.shape[1] else flat.new_zeros(len(flat))
    scale = top / _LARGEST
    steps = finite / torch.where(scale == 0, 1, scale).unsqueeze(1)
    steps = torch.where(flat.isinf(), flat.sign() * _LARGEST, steps.round())
    return steps.clamp(-_LARGEST, _LARGEST).to(torch.int8).reshape(rows.shape), scale


class StorageCast:
    """Makes of values what is stored of them.

    Args:
        word: ``float16``, ``bfloat16`` or ``int8``.

    Attributes:
        lost: how many finite values became infinite; of int8 how many were not finite as float32.
    """

    def __init__(self, word: str) -> None:
        self.word = word
        self.lost: Tensor | int = 0  # on the device, so that nothing waits for it

    def __call__(self, name: str, rows: Tensor) -> dict[str, Tensor]:
        """Return what is stored of ``rows`` under ``name``, and beside it."""
        if self.word == INT8:
            values, scale = to_int8(rows)
            self.lost = self.lost + (~rows.float().isfinite()).sum()
            return {name: values, f"{name}{SCALE}": scale}
        half = rows.to(getattr(torch, self.word))
        self.lost = self.lost + (half.isinf() & ~rows.isinf()).sum()
        return {name: half}

    def warning(self, key: str) -> str:
        """What is to be told of the values that were lost."""
        if self.word == INT8:
            lost = f"{int(self.lost)} values are not finite or beyond float32's range"
            return f"{key}: {lost}, which int8 does not hold"
        return f"{key}: {int(self.lost)} values are too large for {self.word} and became infinite"
