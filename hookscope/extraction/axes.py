"""Which dimension of a layer's rows holds the channels, and which the positions, as of an image."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from hookscope.results.dimensions import channel_dim, channels_last, find_token_grid
from hookscope.specs.extract_options import SPACE, TOKENS


@dataclass(frozen=True)
class ImageGrid:
    """A grid of positions in a tensor."""

    height: int
    width: int
    layout: str
    prefix: int = 0

    def maps(self, tensor: Tensor) -> Tensor:
        """Return the grid's values as (N, C, height, width)."""
        if self.layout == "NHWC":
            return tensor.permute(0, 3, 1, 2)
        if self.layout == "NLC":
            rows = tensor[:, self.prefix :].transpose(1, 2)
            return rows.reshape(*rows.shape[:2], self.height, self.width)
        return tensor


def find_image_grid(
    shape: tuple[int, ...],
    batch: int,
    image: tuple[int, int],
    known: Collection[tuple[int, int]] = (),
) -> ImageGrid | None:
    """Return the grid in maps or in tokens (N, L, C); None unless it has two positions or more."""
    if len(shape) == 4 and shape[0] == batch:
        return _of_maps(shape, image)
    if len(shape) == 3 and shape[0] == batch:
        grid = find_token_grid(shape[1], image, known)
        return ImageGrid(grid.height, grid.width, "NLC", grid.prefix) if grid else None
    return None


def _of_maps(shape: tuple[int, ...], image: tuple[int, int]) -> ImageGrid | None:
    first, last = (shape[2], shape[3]), (shape[1], shape[2])
    if channels_last(shape, image):
        grid = ImageGrid(*last, "NHWC")
    elif first[0] <= image[0] and first[1] <= image[1]:
        grid = ImageGrid(*first, "NCHW")
    else:
        return None
    return grid if grid.height * grid.width > 1 else None


@dataclass(frozen=True)
class Axes:
    """The dimensions of a tensor whose first dimension is the rows."""

    channel: int | None
    positions: tuple[int, ...] = ()
    kind: str | None = None
    prefix: int | None = None

    def by_channel(self, tensor: Tensor) -> Tensor:
        """Return the tensor as (rows, channels, positions)."""
        if self.channel is None:
            return tensor.reshape(len(tensor), 1, 1)
        channels = tensor.shape[self.channel]
        positions = row_size(tensor) // channels if channels else 1
        return tensor.movedim(self.channel, 1).reshape(len(tensor), channels, positions)


def infer_axes(type: str, shape: tuple[int, ...], image: tuple[int, int] | None = None) -> Axes:
    """Infer the dimensions of a layer's tensor.

    Maps are (N, C, H, W), or (N, H, W, C) if only that layout has the image's aspect ratio. A class
    whose name ends in ``1d`` returns maps of one dimension, (N, C, L), whose positions are also
    ``space``. Tokens are (N, L, C), vectors (N, C).
    """
    ndim = len(shape) + 1
    if ndim == 1:
        return Axes(None)
    grid = find_image_grid((1, *shape), 1, image) if image else None
    channel = 3 if grid and grid.layout == "NHWC" else channel_dim(type, ndim)
    positions = tuple(dim for dim in range(1, ndim) if dim != channel)
    if not positions:
        return Axes(channel)
    if channel == 2:
        return Axes(channel, positions, TOKENS, grid.prefix if grid else None)
    return Axes(channel, positions, SPACE)


def row_size(rows: Tensor) -> int:
    """Number of values in a row. A -1 in ``reshape`` fails if there are no rows."""
    return rows.shape[1:].numel()


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype for sums over ``tensor``: float64, or float32 on a device without float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
