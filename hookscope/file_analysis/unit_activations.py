"""The largest and smallest activations of the units of a layer, their means and quantiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.layer_rows import Matrix, row_count, row_counter
from hookscope.file_analysis.unit_layer import UnitLayer
from hookscope.files.progress_types import Progress

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
BINS = 1 << 16  # of the histogram that approximates quantiles of very many activations
_EXACT = 1 << 27  # bytes of activations up to which quantiles are exact
_BLOCK = 1 << 24  # bytes of float64 values that are read at a time


class UnitRanking:
    """The ``count`` largest activations of each unit, never NaN, with their rows, earlier first."""

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


class ActivationSums:
    """The means of the activations of units, and what is left out of them.

    Attributes:
        missing: for each unit the number of rows where it is NaN.
    """

    def __init__(self, units: int) -> None:
        self.missing: NDArray[np.int64] = np.zeros(units, np.int64)
        self._sums = np.zeros(units)
        self._counts = np.zeros(units, np.int64)
        self._infinite = 0

    def add(self, values: Matrix) -> None:
        """Add a block, (rows, units)."""
        usable = np.isfinite(values)
        self._sums += np.where(usable, values, 0).sum(axis=0)
        self._counts += usable.sum(axis=0)
        self._infinite += int(np.isinf(values).sum())
        self.missing += np.isnan(values).sum(axis=0)

    def means(self) -> Matrix:
        """Return the mean of each unit; NaN if it has no finite activation."""
        means = np.full(len(self._counts), math.nan)
        np.divide(self._sums, self._counts, out=means, where=self._counts > 0)
        return means

    def notes(self) -> Iterator[str]:
        """Yield what was left out, in sentences."""
        if most := int(self.missing.max()):
            yield f"Left out because a unit is NaN there: up to {row_count(most)}."
        if self._infinite:
            yield (
                f"{self._infinite} activations are infinite; they are left out of mean and"
                " quantiles."
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


@dataclass(frozen=True)
class UnitActivations:
    """What was measured of the activations of all units."""

    most: UnitRanking
    least: UnitRanking
    sums: ActivationSums
    quantiles: Matrix
    exact: bool

    def rows(self) -> set[int]:
        """Return the numbers of the rows that are ranked for any unit."""
        return {*self.most.rows.ravel().tolist(), *self.least.rows.ravel().tolist()}

    def notes(self) -> Iterator[str]:
        """Yield what was left out or approximated, in sentences."""
        yield from self.sums.notes()
        if not self.exact:
            yield f"Quantiles are approximate, to (largest - smallest) / {BINS} of a unit."


def measure_units(
    layer: UnitLayer, numbers: NDArray[np.intp], count: int, progress: Progress | None
) -> UnitActivations:
    """Read the rows block by block, twice if the quantiles are not exact."""
    exact = 8 * len(numbers) * layer.count <= _EXACT
    most, least = (UnitRanking(layer.count, count) for _ in range(2))
    sums, kept = ActivationSums(layer.count), list[Matrix]()
    advance = row_counter(progress, len(numbers) * (1 if exact else 2))
    for rows, values, places in _blocks(layer, numbers):
        most.add(values, rows, places)
        least.add(-values, rows, places)
        sums.add(values)
        if exact:
            kept.append(values)
        advance(len(rows))
    if exact:
        quantiles = _exact_quantiles(np.concatenate(kept))
    else:
        quantiles = _histogram_quantiles(layer, numbers, most, least, advance)
    return UnitActivations(most, least, sums, quantiles, exact)


def _blocks(
    layer: UnitLayer, numbers: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], Matrix, NDArray[np.intp]]]:
    width = max(layer.rows.width, layer.count * math.prod(layer.positions))
    step = max(_BLOCK // (8 * width), 1)
    for at in range(0, len(numbers), step):
        rows = numbers[at : at + step]
        yield rows, *layer.activations(rows)


def _exact_quantiles(values: Matrix) -> Matrix:
    found = np.full((values.shape[1], len(QUANTILES)), math.nan)
    for unit in range(values.shape[1]):
        column = values[np.isfinite(values[:, unit]), unit]
        if len(column):
            found[unit] = np.quantile(column, QUANTILES)
    return found


def _histogram_quantiles(
    layer: UnitLayer,
    numbers: NDArray[np.intp],
    most: UnitRanking,
    least: UnitRanking,
    advance: Any,
) -> Matrix:
    """Quantiles from a second pass over the rows."""
    low, high = -least.values[:, 0], most.values[:, 0]
    histogram = QuantileHistogram(*(np.nan_to_num(end) for end in (low, high)))
    for rows, values, _ in _blocks(layer, numbers):
        histogram.add(values)
        advance(len(rows))
    return histogram.quantiles(QUANTILES)
