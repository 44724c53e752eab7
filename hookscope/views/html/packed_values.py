"""Curves of a run as text within a page: float32 in base64, thinned where there are too many.

A column of a table is one row of it or, if the table is thinned, several consecutive rows. A series
has for each column

- one number if nothing was thinned: the float32 of the run, bit for bit;
- else two: the lowest and the highest of the column's rows. If one of them is NaN, NaN stands in
  the place of the highest.

A series with the same number in every row has that number once.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import RunTable

Words = NDArray[np.uint32]  # float32 by their bits, so that MISSING differs from a measured NaN

MISSING = np.uint32(0xFFFFFFFF)  # a NaN that no measurement has: see ``series_words``
NAN = np.float32(np.nan).view(np.uint32)
BLOCK_WORDS = 2**18  # of a block that is decoded as a whole; a longer series has one of its own


class PackedValues(NamedTuple):
    """Where an array is: ``length`` words of a block, from ``offset``."""

    block: int
    offset: int
    length: int


class ValuePacker:
    """Collects arrays in blocks, which are decoded one by one when they are needed."""

    def __init__(self) -> None:
        self._blocks: list[list[NDArray[np.generic]]] = [[]]
        self._length = 0  # words of the last block

    def add(self, words: Words | NDArray[np.int32]) -> PackedValues:
        """Add an array of words of 32 bits; return where it is."""
        if self._length and self._length + len(words) > BLOCK_WORDS:
            self._blocks.append([])
            self._length = 0
        packed = PackedValues(len(self._blocks) - 1, self._length, len(words))
        self._blocks[-1].append(words)
        self._length += len(words)
        return packed

    def base64_blocks(self) -> tuple[str, ...]:
        """Return each block in base64; its words are little-endian."""
        return tuple(
            base64.b64encode(b"".join(_little_endian(words) for words in block)).decode()
            for block in self._blocks
        )


def _little_endian(words: NDArray[np.generic]) -> bytes:
    return words.astype(words.dtype.newbyteorder("<"), copy=False).tobytes()


@dataclass(frozen=True)
class StepColumns:
    """The columns of a table."""

    rows: int
    per_column: int

    @classmethod
    def for_limit(cls, rows: int, words: int) -> StepColumns:
        """Return columns that take at most about ``words`` words a series."""
        return cls(rows, 1 if rows <= words else -(-rows // max(words // 2, 1)))

    @property
    def thinned(self) -> bool:
        """Whether a column has more than one row."""
        return self.per_column > 1

    @property
    def starts(self) -> NDArray[np.intp]:
        """The first row of each column."""
        return np.arange(0, self.rows, self.per_column)

    @property
    def ends(self) -> NDArray[np.intp]:
        """The last row of each column."""
        return np.minimum(self.starts + self.per_column, self.rows) - 1

    def thin(self, words: Words) -> Words:
        """Return the words of a series: as they are, one if all are equal, or two a column."""
        if len(words) and (words == words[0]).all():
            return words[:1]
        if not self.thinned:
            return words
        present = words != MISSING
        # np.fmin and np.fmax ignore NaN, and with it what is missing.
        values = words.view(np.float32)
        low = np.fmin.reduceat(values, self.starts).view(np.uint32)
        high = np.fmax.reduceat(values, self.starts).view(np.uint32)
        has_nan = np.logical_or.reduceat(present & np.isnan(values), self.starts)
        has_value = np.logical_or.reduceat(present, self.starts)
        low = np.where(np.isnan(low.view(np.float32)), NAN, low)
        high = np.where(has_nan, NAN, high)
        return np.where(has_value[:, None], np.stack([low, high], axis=1), MISSING).ravel()


def series_words(table: RunTable, series: Series) -> Words:
    """Return the values of a series by their bits, uint32 [R]; ``MISSING`` where there is none.

    A measured NaN has the bits of the usual one.
    """
    curve = table.curve(series)
    words = np.full(len(table), MISSING)
    values = np.where(np.isnan(curve.values), NAN, curve.values.view(np.uint32))
    words[np.searchsorted(table.steps, curve.steps)] = values
    return words


def word_limit(tables: Sequence[RunTable], total: int, varying: Sequence[int]) -> list[int]:
    """Return how many words each series of each table may take.

    The tables come in the order of their rights: each may take all that the ones before it left,
    but no more than a fifth if another one follows.
    """
    limits = []
    for n, (table, count) in enumerate(zip(tables, varying, strict=True)):
        share = total if n == len(tables) - 1 else total // 5
        limits.append(max(share // max(count, 1), 32))
        total -= min(len(table), limits[-1]) * count
    return limits
