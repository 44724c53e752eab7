"""Which dimension of a layer's rows holds the channels, and which the positions, as of an image."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from hookscope.results.dimensions import (
    CHANNELS_LAST,
    MAX_PREFIX_TOKENS,
    channel_dim,
    channels_last,
    find_token_grid,
)
from hookscope.specs.extract_options import SPACE, TOKENS


@dataclass(frozen=True)
class ImageGrid:
    """A grid of positions in a tensor, over an image, a volume or a signal."""

    sides: tuple[int, ...]
    layout: str
    prefix: int = 0

    def maps(self, tensor: Tensor) -> Tensor:
        """Return the grid's values as (N, C, *sides)."""
        if self.layout == "NLC":
            rows = tensor[:, self.prefix :].transpose(1, 2)
            return rows.reshape(*rows.shape[:2], *self.sides)
        return tensor if self.layout[1] == "C" else tensor.movedim(-1, 1)


def find_image_grid(
    shape: tuple[int, ...],
    batch: int,
    image: tuple[int, ...],
    known: Collection[tuple[int, ...]] = (),
    type: str = "",
) -> ImageGrid | None:
    """Return the grid in maps or in tokens (N, L, C); None unless it has two positions or more.

    ``image`` has the sides of the model's input: two of an image, three of a volume, one of a
    signal. ``type`` is the class of the layer, which only the grid of a signal depends on.
    """
    if shape[:1] != (batch,):
        return None
    if len(image) == 1:
        return _of_signal(shape, image[0], known, type)
    if len(shape) == len(image) + 2:
        return _of_maps(shape, image)
    return _of_tokens(shape[1], image, known) if len(shape) == 3 else None


def _of_maps(shape: tuple[int, ...], image: tuple[int, ...]) -> ImageGrid | None:
    letters = "DHW"[-len(image) :]
    first = shape[2:]
    if channels_last(shape, image[-2:]):
        grid = ImageGrid(shape[1:-1], f"N{letters}C")
    elif all(side <= whole for side, whole in zip(first, image, strict=True)):
        grid = ImageGrid(first, f"NC{letters}")
    else:
        return None
    return grid if math.prod(grid.sides) > 1 else None


def _of_tokens(
    length: int, image: tuple[int, ...], known: Collection[tuple[int, ...]]
) -> ImageGrid | None:
    """The grid of tokens; that of a volume must be that of an earlier layer's maps."""
    if len(image) == 2:
        grid = find_token_grid(length, image, [(sides[0], sides[1]) for sides in known])
        return ImageGrid((grid.height, grid.width), "NLC", grid.prefix) if grid else None
    for prefix in range(min(MAX_PREFIX_TOKENS, length - 2) + 1):
        for sides in known:
            if math.prod(sides) == length - prefix:
                return ImageGrid(sides, "NLC", prefix)
    return None


def _of_signal(
    shape: tuple[int, ...], length: int, known: Collection[tuple[int, ...]], type: str
) -> ImageGrid | None:
    """The grid in (N, C, L), or in (N, L, C) if only that is as long as the signal or earlier maps.

    The class of the layer decides if its name says where the channels are.
    """
    if len(shape) != 3:
        return None
    lengths = {length, *(sides[0] for sides in known)}
    last = type in CHANNELS_LAST or (shape[2] not in lengths and shape[1] in lengths)
    if last and not type.endswith("1d"):
        return _of_tokens(shape[1], (length,), known) or _row((shape[1],), "NLC", length)
    if shape[2] in lengths or type.endswith("1d"):
        return _row((shape[2],), "NCL", length)
    return _of_tokens(shape[1], (length,), known) or _row((shape[2],), "NCL", length)


def _row(sides: tuple[int], layout: str, length: int) -> ImageGrid | None:
    return ImageGrid(sides, layout) if 1 < sides[0] <= length else None


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
