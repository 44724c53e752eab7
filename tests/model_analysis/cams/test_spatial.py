"""Where the grid lies in a tensor, found from its shape and the image's."""

from __future__ import annotations

import pytest
import torch

from hookscope.extraction.axes import ImageGrid, find_image_grid

SQUARE, WIDE = (224, 224), (224, 320)


@pytest.mark.parametrize(
    ("shape", "image", "grid"),
    [
        ((1, 512, 7, 7), SQUARE, ImageGrid((7, 7), "NCHW")),
        ((1, 512, 7, 10), WIDE, ImageGrid((7, 10), "NCHW")),
        ((1, 7, 7, 768), SQUARE, ImageGrid((7, 7), "NHWC")),
        ((1, 7, 10, 768), WIDE, ImageGrid((7, 10), "NHWC")),
        ((1, 8, 8, 8), SQUARE, ImageGrid((8, 8), "NCHW")),  # both would do: the usual one
        ((1, 512, 7, 7), WIDE, ImageGrid((7, 7), "NCHW")),  # pooled to a square
        ((1, 512, 1, 1), SQUARE, None),
        ((1, 3, 448, 448), SQUARE, None),
        ((2, 512, 7, 7), SQUARE, None),  # not as many as there are images
        ((1, 196, 768), SQUARE, ImageGrid((14, 14), "NLC")),
        ((1, 197, 768), SQUARE, ImageGrid((14, 14), "NLC", 1)),  # a class token
        ((1, 198, 768), SQUARE, ImageGrid((14, 14), "NLC", 2)),  # and a distillation token
        ((1, 201, 768), SQUARE, ImageGrid((14, 14), "NLC", 5)),  # and registers
        ((1, 281, 768), WIDE, ImageGrid((14, 20), "NLC", 1)),
        ((1, 1, 768), SQUARE, None),
        ((1, 1000), SQUARE, None),
        ((1, 3, 4, 7, 7), SQUARE, None),
    ],
)
def test_grids_are_told_by_shape(shape, image, grid) -> None:
    assert find_image_grid(shape, 1, image) == grid


def test_tokens_lie_on_the_grid_of_the_patches_that_they_were() -> None:
    assert find_image_grid((1, 13, 8), 1, SQUARE) == ImageGrid((3, 3), "NLC", 4)
    assert find_image_grid((1, 13, 8), 1, SQUARE, [(4, 3)]) == ImageGrid((4, 3), "NLC", 1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NLC"])
def test_values_keep_their_places(layout) -> None:
    maps = torch.arange(2 * 5 * 3 * 4).reshape(2, 5, 3, 4)
    laid = {
        "NCHW": maps,
        "NHWC": maps.permute(0, 2, 3, 1),
        "NLC": torch.cat([torch.full((2, 2, 5), -1), maps.flatten(2).transpose(1, 2)], 1),
    }
    grid = ImageGrid((3, 4), layout, 2 if layout == "NLC" else 0)
    assert torch.equal(grid.maps(laid[layout]), maps)
