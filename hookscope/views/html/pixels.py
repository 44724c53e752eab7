"""Colours as a picture that stands in the page itself."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

COLUMNS = 4  # tiles in a row
GAP = 1  # transparent pixels behind each tile, to the right and below


def tiles(colors: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Return maps side by side, each with ``GAP`` transparent pixels behind it.

    Args:
        colors: uint8 ``(maps, height, width, 3)``.
        columns: maps in a row.

    Returns:
        uint8 ``(rows, columns, 4)``: red, green, blue and opacity.
    """
    count, height, width, _ = colors.shape
    rows = math.ceil(count / columns)
    cells = np.zeros((rows * columns, height + GAP, width + GAP, 4), np.uint8)
    cells[:count, :height, :width, :3] = colors
    cells[:count, :height, :width, 3] = 255
    grid = cells.reshape(rows, columns, height + GAP, width + GAP, 4).swapaxes(1, 2)
    return grid.reshape(rows * (height + GAP), columns * (width + GAP), 4)


def png(pixels: NDArray[np.uint8]) -> str:
    """Return an image as a ``data:`` address of a PNG, with one byte a pixel where that is enough.

    Args:
        pixels: uint8 ``(rows, columns, 4)``: red, green, blue and opacity.
    """
    packed = np.ascontiguousarray(pixels).view("<u4")[..., 0]
    colors, places = np.unique(packed, return_inverse=True)
    options: dict[str, Any] = {}
    if len(colors) <= 256:
        table = colors.view(np.uint8).reshape(-1, 4)
        image = Image.fromarray(places.reshape(packed.shape).astype(np.uint8))
        image.putpalette(table[:, :3].tobytes())
        options["transparency"] = table[:, 3].tobytes()
    else:
        image = Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, "png", **options)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
