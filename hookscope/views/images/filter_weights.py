"""The kernels of a convolution as images, by filter and input channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.views.images.feature_maps import pick_channels

MAX_COLUMNS = 16  # input channels of a kernel that are drawn


@dataclass(frozen=True)
class Kernels:
    """Some kernels of a convolution."""

    values: NDArray[Any]
    filters: tuple[int, ...]
    columns: tuple[str, ...]
    color: bool
    total: int
    left_out: int


def choose_kernels(
    weight: NDArray[Any],
    name: str,
    channels: Sequence[int] | None,
    by: str,
    count: int,
    seed: int,
) -> Kernels:
    """Return some filters of a convolution.

    Three input channels are red, green and blue. If there are more than 16, the first 16 are
    kept. A filter of a 1-d convolution is one image with a row for each input channel. A filter of
    a 3-d convolution has a column for each step of each input channel.

    Example:
        >>> kernels = choose_kernels(np.ones((8, 3, 7, 7)), "conv1", None, "index", 4, 0)
        >>> kernels.values.shape, kernels.color
        ((4, 3, 7, 7), True)
    """
    total, inputs = weight.shape[:2]
    chosen = pick_channels(weight, name, channels, by, count, seed)
    kept = weight[list(chosen)]
    if weight.ndim == 3:
        return Kernels(kept[:, None], chosen, ("",), False, total, 0)
    columns = [f"in {i}" for i in range(inputs)]
    if weight.ndim == 5:
        columns = [f"{column}, step {t}" for column in columns for t in range(weight.shape[2])]
        kept = kept.reshape(len(kept), -1, *weight.shape[3:])
    color = weight.ndim == 4 and inputs == 3
    some = slice(None) if color else slice(MAX_COLUMNS)
    left_out = len(columns) - len(columns[some])
    return Kernels(kept[:, some], chosen, tuple(columns[some]), color, total, left_out)


def output_channels_first(weight: NDArray[Any], groups: int = 1) -> NDArray[Any]:
    """Return the weight of a transposed convolution with its output channels first.

    Example:
        >>> output_channels_first(np.ones((6, 4, 3, 3)), groups=2).shape
        (8, 3, 3, 3)
    """
    parted = weight.reshape(groups, -1, *weight.shape[1:])
    turned = np.swapaxes(parted, 1, 2)
    return turned.reshape(-1, *turned.shape[2:])
