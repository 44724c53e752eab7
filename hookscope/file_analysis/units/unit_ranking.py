"""The largest and smallest activations of units, kept while rows are read once in blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.similarity.layer_rows import Matrix

BINS = 1 << 16  # of the histogram that approximates quantiles of very many activations


class UnitRanking:
    """The ``count`` largest activations of each unit, with their rows; earlier rows first.

    NaN is never among them. Memory does not grow with the rows.

    Example:
        >>> ranking = UnitRanking(1, 2)
        >>> ranking.add(np.array([[3.0], [7.0], [7.0]]), np.array([0, 1, 2]), np.zeros((3, 1), int))
        >>> ranking.rows[0].tolist()
        [1, 2]
    """

    def __init__(self, units: int, count: int) -> None:
        self.values: Matrix = np.full((units, 0), math.nan)
        self.rows: NDArray[Any] = np.empty((units, 0), np.intp)
        self.places: NDArray[Any] = np.empty((units, 0), np.intp)
        self._count = count

    def add(self, values: Matrix, rows: NDArray[Any], places: NDArray[Any]) -> None:
        """Add a block: values and places of (rows, units), and the numbers of the rows."""
        numbers = np.broadcast_to(rows[:, None], values.shape)
        joined = np.concatenate([self.values, values.T], axis=1)
        all_rows = np.concatenate([self.rows, numbers.T], axis=1)
        all_places = np.concatenate([self.places, places.T], axis=1)
        # NaN last; the sort is stable, so earlier rows stay first.
        order = np.argsort(-joined, axis=1, kind="stable")[:, : self._count]
        self.values, self.rows, self.places = (
            np.take_along_axis(array, order, axis=1) for array in (joined, all_rows, all_places)
        )


class QuantileHistogram:
    """Quantiles of the activations of units, from equal bins between the smallest and the largest.

    A quantile is at most the width of a bin, (largest - smallest) / 65536, from the exact one.
    """

    def __init__(self, low: Matrix, high: Matrix) -> None:
        self._low, self._high = low, high
        self._counts = np.zeros((len(low), BINS), np.int64)

    def add(self, values: Matrix) -> None:
        """Add a block, (rows, units); values that are not finite are left out."""
        span = np.where(self._high > self._low, self._high - self._low, 1.0)
        for unit in range(values.shape[1]):
            column = values[:, unit]
            column = column[np.isfinite(column)]
            bins = ((column - self._low[unit]) / span[unit] * BINS).astype(np.int64)
            self._counts[unit] += np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS)

    def quantiles(self, shares: tuple[float, ...]) -> Matrix:
        """Return the quantiles, (units, shares)."""
        found = np.full((len(self._low), len(shares)), math.nan)
        for unit, counts in enumerate(self._counts):
            total = counts.sum()
            if not total:
                continue
            ends = np.cumsum(counts)
            at = np.searchsorted(ends, np.array(shares) * (total - 1), side="right")
            width = (self._high[unit] - self._low[unit]) / BINS
            found[unit] = self._low[unit] + (at + 0.5) * width
        return found
