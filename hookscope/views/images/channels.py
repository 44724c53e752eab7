"""Which channels of a tensor are shown: the first, the strongest, or some at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.results.numpy_stats import magnitude

COUNT = 16  # so many are shown where nobody says how many


def choose_channels(
    array: NDArray[Any], dim: int, by: str = "index", count: int = COUNT, seed: int = 0
) -> tuple[int, ...]:
    """Return the indices of at most ``count`` channels.

    Args:
        array: any shape; real or complex.
        dim: the dimension along which the channels lie.
        by: ``index``: the first ones; ``strength``: those with the largest mean absolute value over
            their finite entries, the strongest first, the lower index first among equals;
            ``random``: some drawn from ``seed``, in rising order.
        count: how many at most.
        seed: of the draw.

    Example:
        >>> choose_channels(np.array([[1.0, -3.0, 2.0]]), 1, "strength", 2)
        (1, 2)
    """
    channels = array.shape[dim]
    if by == "random":
        draw = np.random.default_rng(seed).permutation(channels)[:count]
        return tuple(sorted(int(channel) for channel in draw))
    if by == "strength":
        # A stable sort keeps equals in order.
        order = np.argsort(-strengths(array, dim), kind="stable")
        return tuple(int(channel) for channel in order[:count])
    return tuple(range(min(count, channels)))


def strengths(array: NDArray[Any], dim: int) -> NDArray[np.float64]:
    """Return the mean absolute value of each channel's finite entries; 0 where none is finite."""
    rows = np.moveaxis(magnitude(array), dim, 0).reshape(array.shape[dim], -1)
    sizes = np.abs(rows.astype(np.float64))
    finite = np.isfinite(sizes)
    total = np.where(finite, sizes, 0).sum(axis=1)
    return np.asarray(total / np.maximum(finite.sum(axis=1), 1))


def demand_channels(wanted: Sequence[int], channels: int, name: str) -> None:
    """Make sure that the channels named exist.

    Raises:
        RequestError: one lies outside 0 to ``channels - 1``; ``name`` tells whose they are.
    """
    wrong = [channel for channel in wanted if not 0 <= channel < channels]
    if wrong:
        raise RequestError(
            f"There is no channel {wrong[0]} in {name}.", f"Name channels from 0 to {channels - 1}."
        )
