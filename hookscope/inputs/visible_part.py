"""The part of an image that the preprocessing leaves, found by preprocessing images of ramps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hookscope.errors import HookscopeError
from hookscope.stores.features.manifest import SHORTER_SIDE, SIDES, VisiblePart

_SIZES = ((256, 256), (512, 256), (256, 512))  # width and height: square, wide and tall
_TOLERANCE = 0.02  # of a side
_Edges = tuple[float, float]


def find_visible_part(run: Callable[[Image.Image], Tensor], channels: int) -> VisiblePart | None:
    """Return which part in the middle of an image becomes the tensor; None if that is not known."""
    try:
        black, white = (
            float(run(_image(np.full(_SIZES[0], value, np.uint8), channels))[0].float().mean())
            for value in (0, 255)
        )
        if black == white:
            return None
        found = []
        for size in _SIZES:
            edges = [_edges(run, size, channels, axis, black, white) for axis in (0, 1)]
            if None in edges:
                return None
            found.append([high - low for low, high in (edge for edge in edges if edge)])
    except (HookscopeError, RuntimeError, ValueError, TypeError, IndexError):
        return None  # a user's own function may expect other images
    return _described(found)


def _image(values: NDArray[np.uint8], channels: int) -> Image.Image:
    return Image.fromarray(values).convert("RGB" if channels == 3 else "L")


def _edges(
    run: Callable[[Image.Image], Tensor],
    size: tuple[int, int],
    channels: int,
    axis: int,
    black: float,
    white: float,
) -> _Edges | None:
    """Where the middle part begins and ends along an axis, as shares; None if there is none."""
    width, height = size
    length = size[axis]
    ramp = np.round(np.linspace(0, 255, length)).astype(np.uint8)
    values = np.broadcast_to(ramp if axis == 0 else ramp[:, None], (height, width))
    tensor = run(_image(np.ascontiguousarray(values), channels))[0].float().numpy()
    lines = tensor if axis == 0 else tensor.T
    # Pixel n of the image has its centre at n + 0.5.
    shares = ((lines - black) / (white - black) * (length - 1) + 0.5) / length
    first, middle, last = (shares[len(shares) * part // 4] for part in (1, 2, 3))
    if np.abs(np.stack((first, last)) - middle).max() > _TOLERANCE:
        return None
    count = len(middle)
    if count < 4:
        return None
    inner = np.arange(count // 4, count - count // 4)  # filters change the values at the sides
    slope, start = np.polyfit(inner + 0.5, middle[inner], 1)
    low, high = float(start), float(start + slope * count)
    straight = np.abs(np.polyval((slope, start), inner + 0.5) - middle[inner]).max() < _TOLERANCE
    in_middle = abs(low + high - 1) < 2 * _TOLERANCE and 0 < high - low < 1 + 2 * _TOLERANCE
    return (low, high) if straight and in_middle else None


def _described(shares: list[list[float]]) -> VisiblePart | None:
    """The part by the shares of width and height that are visible of each of ``_SIZES``."""
    each = np.array(shares)
    short = each * np.array(_SIZES) / np.min(_SIZES, axis=1, keepdims=True)
    for of, values in ((SIDES, each), (SHORTER_SIDE, short)):
        if np.ptp(values, axis=0).max() < _TOLERANCE:
            width, height = (round(min(float(v), 1.0), 3) for v in np.median(values, axis=0))
            return {"of": of, "width": width, "height": height}
    return None
