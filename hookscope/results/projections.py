"""Signed random projections of an array, by which two arrays are compared that are never together.

A count sketch (Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", 2002):
each entry gets a random sign and is added to one of 64 sums. For two arrays x and y, the squared
distance of their sums has the expected value ``|x - y|**2``, as in the sketch of Alon, Matias and
Szegedy (1996), and a standard deviation of about ``sqrt(2 / 64)`` of that, if the difference is
spread over many entries. So the sums tell the size of a difference to about a tenth.

The signs come from Philox, a generator whose numbers depend on the seed and a counter alone
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). They are the same on every
machine and for every array.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.stats import BLOCK

PROJECTIONS = 64
_SEED = 64
# Entries are added up in columns. The number is prime, so that no dimension of a tensor, such as
# its channels, falls in one column.
_COLUMNS = 127


def project(blocks: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the projections of an array, given as blocks of ``BLOCK`` entries; the last is short.

    Entries that are not finite count as zero. Complex numbers are pairs of reals.

    Example:
        >>> x = np.arange(1000.0)
        >>> difference = project([x]) - project([x + 0.001])
        >>> bool(0.02 < np.linalg.norm(difference) < 0.05)  # about 0.001 * 1000**0.5
        True
    """
    totals = np.zeros(_COLUMNS)
    for number, block in enumerate(blocks):
        if block.dtype.kind == "c":
            block = block.view(block.real.dtype)
        for half, part in enumerate(np.split(block, range(BLOCK, len(block), BLOCK))):
            totals += _signs_of(2 * number + half) * _column_sums(part)
    totals[:-PROJECTIONS] += totals[PROJECTIONS:]
    return totals[:PROJECTIONS]


def _column_sums(block: NDArray[Any]) -> NDArray[np.float64]:
    """The sums of the columns of a block, with the signs of its entries."""
    rows, rest = divmod(len(block), _COLUMNS)
    signs = _signs()
    wide = block.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        matrix = wide[: rows * _COLUMNS].reshape(rows, _COLUMNS)
        sums: NDArray[np.float64] = np.einsum("ij,ij->j", matrix, signs[:rows])
        sums[:rest] += wide[rows * _COLUMNS :] * signs[rows, :rest]
    if not np.isfinite(sums).all() and not np.isfinite(wide).all():
        return _column_sums(np.where(np.isfinite(wide), wide, 0.0))
    return sums


@cache
def _signs() -> NDArray[np.float64]:
    """The signs of the entries of a block, in rows."""
    rows = BLOCK // _COLUMNS + 1
    return _random_signs(0, rows * _COLUMNS).reshape(rows, _COLUMNS)


@cache
def _signs_of(number: int) -> NDArray[np.float64]:
    """The signs of the columns of a block; without them, two blocks could be swapped unnoticed."""
    return _random_signs((number + 1) << 64, _COLUMNS)


def _random_signs(counter: int, count: int) -> NDArray[np.float64]:
    words = np.random.Philox(key=_SEED, counter=counter).random_raw(-(-count // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=count)
    return np.where(bits, -1.0, 1.0)
