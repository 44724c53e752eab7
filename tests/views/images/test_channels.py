"""Which channels are shown, against numpy written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hookscope.errors import RequestError
from hookscope.views.images.feature_maps import channel_strengths, check_channels, choose_channels


def test_by_index_come_the_first() -> None:
    array = np.zeros((2, 5, 3))
    assert choose_channels(array, 1, "index", 3) == (0, 1, 2)
    assert choose_channels(array, 1) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_by_strength_come_those_of_the_largest_mean_size(dim: int) -> None:
    array = np.random.default_rng(0).normal(size=(4, 5, 6))
    order = [np.abs(part).mean() for part in np.moveaxis(array, dim, 0)]
    expected = sorted(range(len(order)), key=lambda i: -order[i])[:3]
    assert choose_channels(array, dim, "strength", 3) == tuple(expected)


def test_among_equals_the_first_comes_first() -> None:
    assert choose_channels(np.array([[1.0, -2.0, 2.0, 1.0]]), 1, "strength", 4) == (1, 2, 0, 3)


def test_one_nan_or_infinity_does_not_hide_how_strong_the_rest_is() -> None:
    array = np.array([[1.0, np.nan], [3.0, 3.0], [np.inf, 2.0], [np.nan, np.nan]])
    assert channel_strengths(array, 0).tolist() == [1.0, 3.0, 2.0, 0.0]


def test_half_precision_does_not_overflow() -> None:
    array = np.full((2, 9, 9), 60_000, np.float16)
    assert channel_strengths(array, 0).tolist() == [float(np.float16(60_000))] * 2


def test_at_random_the_seed_decides() -> None:
    array = np.zeros((1, 64))
    first = choose_channels(array, 1, "random", 8, seed=1)
    assert first == choose_channels(array, 1, "random", 8, seed=1)
    assert first != choose_channels(array, 1, "random", 8, seed=2)
    assert len(set(first)) == 8 and list(first) == sorted(first) and max(first) < 64
    assert choose_channels(array[:, :3], 1, "random", 8) == (0, 1, 2)


def test_complex_channels_are_told_by_their_magnitude() -> None:
    assert choose_channels(np.array([[1 + 0j, 0 - 3j]]), 1, "strength", 1) == (1,)


def test_a_channel_that_is_not_there_is_refused() -> None:
    check_channels((0, 4), 5, "a/output")
    with pytest.raises(RequestError, match="no channel 5 in a/output"):
        check_channels((0, 5), 5, "a/output")
