"""Numbers as colours: two tables of 256 colours, and the scales that map numbers to them.

Both tables are lines through OKLab, in which equal distances look equally far apart (Ottosson, "A
perceptual color space for image processing", 2020). Each is sampled at equal distances along it.

- ``SEQUENTIAL``, for values of one sign: from dark blue through green to light yellow. Lightness
  rises monotonically, so colours can be compared without hue and in a black-and-white print.
- ``DIVERGING``, for values of both signs: blue for negative, near white for zero, orange for
  positive. Blue and orange differ in all common kinds of colour blindness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.numpy_stats import magnitude
from hookscope.specs.tensor_key import is_gradient

RGB = NDArray[np.uint8]
Reals = NDArray[np.float64]
NAN = (255, 0, 255)
INFINITE = (0, 255, 255)
PERCENTILE = 99  # of the absolute values of a gradient, at the end of its colours

# OKLab to the cube roots of the cones' responses, and their cubes to linear sRGB: Ottosson (2020).
_TO_ROOTS = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def _linear(lab: Reals) -> Reals:
    return np.asarray((lab @ _TO_ROOTS.T) ** 3 @ _TO_LINEAR.T)


def _table(lightness: Reals, chroma: Reals, hue: Reals) -> RGB:
    """A table from a line through lightness, chroma and hue (degrees), at equal distances."""
    angle = np.deg2rad(hue)
    line = np.stack([lightness, chroma * np.cos(angle), chroma * np.sin(angle)], axis=-1)
    lengths = np.linalg.norm(np.diff(line, axis=0), axis=1)
    at = np.concatenate([[0.0], np.cumsum(lengths)])
    even = np.linspace(0, at[-1], 256)
    lab = np.stack([np.interp(even, at, line[:, i]) for i in range(3)], axis=-1)
    linear = np.clip(_linear(lab), 0, 1)  # both lines are inside sRGB, except for rounding
    gamma = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(gamma * 255), np.uint8)


def _sequential() -> RGB:
    t = np.linspace(0, 1, 2048)
    bends = [0, 0.15, 0.25, 0.4, 0.5, 0.85, 1]
    chroma = np.interp(t, bends, [0.09, 0.11, 0.095, 0.085, 0.09, 0.165, 0.13])
    return _table(0.2 + 0.75 * t, chroma, np.interp(t, [0, 0.15, 0.85, 1], [285, 270, 115, 103]))


def _diverging() -> RGB:
    t = np.linspace(-1, 1, 2049)
    away = np.abs(t)
    hue = np.where(t < 0, 255.0, 55.0)
    return _table(0.96 - 0.5 * away, 0.11 * np.sin(away * np.pi / 2), hue)


SEQUENTIAL = _sequential()
DIVERGING = _diverging()


@dataclass(frozen=True)
class ColorScale:
    """The numbers at the ends of a table of colours; a ``diverging`` one is around zero."""

    low: float
    high: float
    diverging: bool = False

    def position(self, values: NDArray[Any]) -> Reals:
        """Return where each value lies from 0 to 1; NaN where it is not finite."""
        wide = magnitude(values).astype(np.float64)
        # Halved, so that the difference of the two largest floats is finite.
        span = self.high / 2 - self.low / 2
        share = (wide / 2 - self.low / 2) / span if span else np.zeros_like(wide)
        return np.where(np.isfinite(wide), np.clip(share, 0, 1), np.nan)

    def paint(self, values: NDArray[Any]) -> RGB:
        """Return the colours of ``values`` (any shape, real or complex): uint8, ``(..., 3)``."""
        position = self.position(values)
        table = DIVERGING if self.diverging else SEQUENTIAL
        colors = table[np.rint(np.nan_to_num(position) * 255).astype(np.intp)]
        colors[np.isnan(position)] = INFINITE
        colors[np.isnan(values)] = NAN
        return colors


def color_scale(values: NDArray[Any]) -> ColorScale:
    """Return the scale for the finite ``values``: diverging if they have both signs."""
    wide = magnitude(values).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    if not finite.size:
        return ColorScale(0.0, 0.0)
    low, high = float(finite.min()), float(finite.max())
    if low < 0 < high:
        bound = max(-low, high)
        return ColorScale(-bound, bound, diverging=True)
    return ColorScale(low, high)


def percentile_bound(values: NDArray[Any]) -> float:
    """Return the 99th percentile of the finite absolute values; the largest where that is 0.

    A few pixels of a gradient are far larger than all others, which they would leave dark.

    >>> percentile_bound(np.array([*range(101), np.inf]))
    99.0
    """
    sizes = np.abs(magnitude(values).astype(np.float64))
    sizes = sizes[np.isfinite(sizes)]
    if not sizes.size:
        return 0.0
    return float(np.percentile(sizes, PERCENTILE)) or float(sizes.max())


def gradient_scale(values: NDArray[Any]) -> ColorScale:
    """Return the scale for gradients: ``color_scale``, with ends at the 99th percentile.

    >>> gradient_scale(np.linspace(-100, 100, 201))
    ColorScale(low=-99.0, high=99.0, diverging=True)
    >>> gradient_scale(np.arange(101.0))
    ColorScale(low=0.0, high=99.0, diverging=False)
    """
    scale, bound = color_scale(values), percentile_bound(values)
    if scale.low == scale.high:
        return scale
    low, high = (float(np.clip(end, -bound, bound)) for end in (scale.low, scale.high))
    return ColorScale(low, high, scale.diverging) if low < high else scale


def scale_for(kind: str) -> Callable[[NDArray[Any]], ColorScale]:
    """Return the function that gives the scale for values of a record of this kind."""
    return gradient_scale if is_gradient(kind) else color_scale


def paint_maps(
    maps: NDArray[Any], kind: str, each: bool = False
) -> tuple[RGB, tuple[ColorScale, ...]]:
    """Return the colours of several maps, and the scale of each."""
    scale_of = scale_for(kind)
    common = None if each else scale_of(maps)
    scales = tuple(common or scale_of(values) for values in maps)
    painted = [scale.paint(values) for scale, values in zip(scales, maps, strict=True)]
    return np.array(painted, np.uint8).reshape(*maps.shape, 3), scales


def is_bright(colors: Any) -> NDArray[np.bool_]:
    """Return whether black text has more contrast than white on colours, ``(..., 3)``.

    >>> is_bright(DIVERGING[[0, 128, 255]]).tolist()
    [False, True, False]
    """
    # The relative luminance of WCAG 2, at which both have the same contrast.
    weights = np.array([0.2126, 0.7152, 0.0722])
    return np.asarray((np.asarray(colors) / 255) ** 2.2 @ weights > 0.179)


def nonfinite_text(values: NDArray[Any]) -> str:
    """Return how many entries are NaN or infinite, and their colour; empty if none are."""
    counts = {"NaN (magenta)": np.isnan(values).sum(), "infinite (cyan)": np.isinf(values).sum()}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
