"""Colours: even to the eye, told apart by those who see fewer of them, and the right one each."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from hookscope.views.images.colors import (
    DIVERGING,
    INFINITE,
    NAN,
    SEQUENTIAL,
    ColorScale,
    color_scale,
    paint_maps,
)
from hookscope.views.images.figures.canvas import SERIES, WARNING
from hookscope.views.images.figures.drawing import PAPERS

# Linear sRGB to cones and back: Smith and Pokorny, as Vienot, Brettel and Mollon, "Digital video
# colourmaps for checking the legibility of displays by dichromats" (1999) give it.
TO_LMS = np.array(
    [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
)
PROTANOPIA = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]])
DEUTERANOPIA = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])


def linear(rgb: NDArray[np.generic]) -> NDArray[np.float64]:
    share = rgb.astype(np.float64) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def as_seen(rgb: NDArray[np.generic], lack: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Linear sRGB as somebody sees it who lacks a kind of cone."""
    if lack is None:
        return linear(rgb)
    return np.clip(linear(rgb) @ (np.linalg.inv(TO_LMS) @ lack @ TO_LMS).T, 0, 1)


def lab(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIELAB of linear sRGB, which is another space than the tables were made in."""
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = values @ np.array(to_xyz).T / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = f[..., 0], f[..., 1], f[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


SIGHT = pytest.mark.parametrize(
    "lack", [None, PROTANOPIA, DEUTERANOPIA], ids=["all", "protanopia", "deuteranopia"]
)


@SIGHT
def test_the_sequential_table_only_grows_lighter(lack: NDArray[np.float64] | None) -> None:
    lightness = lab(as_seen(SEQUENTIAL, lack))[:, 0]
    assert (np.diff(lightness[::4]) > 0.2).all()
    assert lightness[-1] - lightness[0] > 80


@SIGHT
def test_both_ends_of_the_diverging_table_are_far_apart(lack: NDArray[np.float64] | None) -> None:
    seen = lab(as_seen(DIVERGING, lack))
    assert (np.diff(seen[:128:4, 0]) > 0.2).all() and (np.diff(seen[128::4, 0]) < -0.2).all()
    for away in (32, 64, 96, 127):  # 10 is about what lies between two colours of different names
        assert np.linalg.norm(seen[127 - away] - seen[128 + away]) > 10


SERIES_RGB = np.rint(255 * np.array([to_rgb(color) for color in (*SERIES, WARNING)]))


@SIGHT
def test_series_are_told_apart(lack: NDArray[np.float64] | None) -> None:
    seen = lab(as_seen(SERIES_RGB, lack))
    for one, two in combinations(seen, 2):
        assert np.linalg.norm(one - two) > 25


@pytest.mark.parametrize("paper", PAPERS)
def test_series_stand_out_on_light_paper_and_on_dark(paper: str) -> None:
    weights = np.array([0.2126, 0.7152, 0.0722])  # relative luminance as WCAG 2 defines it
    back = linear(255 * np.array(to_rgb(paper))) @ weights
    for color in linear(SERIES_RGB) @ weights:
        assert (max(color, back) + 0.05) / (min(color, back) + 0.05) >= 3


@pytest.mark.parametrize("table", [SEQUENTIAL, DIVERGING], ids=["sequential", "diverging"])
def test_equal_steps_look_equal(table: NDArray[np.uint8]) -> None:
    share = linear(table[::8])
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    oklab = np.cbrt(share @ np.array(to_cones).T) @ np.array(to_lab).T
    steps = np.linalg.norm(np.diff(oklab, axis=0), axis=1)
    assert steps.max() / steps.min() < 1.3


def test_nothing_in_a_table_is_the_colour_of_what_is_not_finite() -> None:
    for odd in (NAN, INFINITE):
        for table in (SEQUENTIAL, DIVERGING):
            far = np.linalg.norm(lab(linear(table)) - lab(linear(np.array(odd))), axis=1)
            assert far.min() > 25


def test_the_ends_and_the_middle_get_their_colours() -> None:
    plain, signed = ColorScale(2, 4), ColorScale(-1, 1, diverging=True)
    assert plain.paint(np.array([2, 4])).tolist() == SEQUENTIAL[[0, 255]].tolist()
    assert signed.paint(np.array([-1, 1])).tolist() == DIVERGING[[0, 255]].tolist()
    middle = signed.paint(np.array([0.0]))[0].astype(int)
    assert middle.max() - middle.min() <= 2 and middle.min() > 235


def test_what_lies_past_the_ends_gets_the_ends() -> None:
    assert ColorScale(0, 1).paint(np.array([-5, 9])).tolist() == SEQUENTIAL[[0, 255]].tolist()


def test_what_is_not_finite_has_colours_of_its_own() -> None:
    painted = ColorScale(0, 1).paint(np.array([np.nan, np.inf, -np.inf]))
    assert painted.tolist() == [list(NAN), list(INFINITE), list(INFINITE)]
    assert color_scale(np.array([np.nan, 1.0, 3.0, -np.inf])) == ColorScale(1.0, 3.0)
    assert color_scale(np.array([np.nan])) == ColorScale(0.0, 0.0)


def test_a_constant_map_is_painted() -> None:
    values = np.full((2, 2), 7.0)
    assert (color_scale(values).paint(values) == SEQUENTIAL[0]).all()


def test_the_largest_floats_do_not_overflow() -> None:
    top = np.finfo(np.float64).max
    values = np.array([-top, 0.0, top])
    assert color_scale(values).position(values).tolist() == [0.0, 0.5, 1.0]


def test_bools_integers_and_complex_numbers_are_painted() -> None:
    for values in (np.array([False, True]), np.array([0, 1]), np.array([0, 1j])):
        assert color_scale(values).paint(values).tolist() == SEQUENTIAL[[0, 255]].tolist()


def test_maps_share_a_scale_or_have_one_each() -> None:
    maps = np.array([[[0.0, 1.0]], [[0.0, 2.0]]])
    shared, scales = paint_maps(maps, "output")
    assert shared.shape == (2, 1, 2, 3) and shared.dtype == np.uint8
    assert scales == (ColorScale(0.0, 2.0),) * 2
    assert shared[1, 0, 1].tolist() == SEQUENTIAL[255].tolist()
    assert shared[0, 0, 1].tolist() == SEQUENTIAL[128].tolist()
    own, scales = paint_maps(maps, "output", each=True)
    assert scales == (ColorScale(0.0, 1.0), ColorScale(0.0, 2.0))
    assert own[0].tolist() == own[1].tolist()
