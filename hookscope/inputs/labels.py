"""Labels of inputs as plain values. It does not import torch: ``top`` reads tables without it."""

from __future__ import annotations

import math
from typing import Any


def plain_label(value: Any) -> int | float | str | bool | None:
    """Return a label as a plain value; None if it is not a text or a single finite number.

    Example:
        >>> import torch
        >>> plain_label(torch.tensor(3)), plain_label("cat"), plain_label(torch.ones(2))
        (3, 'cat', None)
    """
    if getattr(value, "ndim", None) == 0:  # of torch and of numpy
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str) else None
