"""The positions of an image in the output of a layer, inferred from shapes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from hookscope.results.dimensions import channels_last, find_token_grid


@dataclass(frozen=True)
class ImageGrid:
    """A grid of positions in a tensor."""

    height: int
    width: int
    layout: str
    prefix: int = 0

    def maps(self, tensor: Tensor) -> Tensor:
        """Return the grid's values as (N, C, height, width).

        Example:
            >>> import torch
            >>> ImageGrid(2, 3, "NLC", prefix=1).maps(torch.zeros(1, 7, 5)).shape
            torch.Size([1, 5, 2, 3])
        """
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
    """Return the grid in a tensor of ``shape``, None unless it has two positions or more.

    Maps are (N, C, H, W), or (N, H, W, C) if only those lengths have the image's aspect. Tokens
    (N, L, C) form the grid of an earlier layer's maps, else one of the image's aspect, with as few
    tokens before it as possible, up to 16.

    Example:
        >>> find_image_grid((1, 197, 768), 1, (224, 224))
        ImageGrid(height=14, width=14, layout='NLC', prefix=1)
        >>> find_image_grid((1, 7, 7, 768), 1, (224, 224)).layout
        'NHWC'
    """
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
