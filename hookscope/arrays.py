"""Statistics of one of numpy's arrays, as ``summaries.py`` gives those of torch's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.stats import BLOCK, Moments, Stats


def summarize(pieces: Iterable[NDArray[Any]]) -> Stats:
    """Return the statistics of an array that is given in pieces: see ``blocks``.

    Args:
        pieces: arrays of one dimension and of one dtype: bool, integer, floating-point or complex.

    Example:
        >>> s = summarize(blocks(np.array([0.0, 1.0, 2.0, np.nan])))
        >>> s.mean, s.min, s.max, s.zeros, s.nan
        (1.0, 0.0, 2.0, 1, 1)
    """
    moments = Moments()
    numel, exact = 0, False
    for piece in pieces:
        exact = piece.dtype.kind in "biu"
        wide = magnitude(piece).astype(np.float64)
        numel += wide.size
        moments.zeros += wide.size - int(np.count_nonzero(wide))
        kept = wide[np.isfinite(wide)]
        nan_here = int(np.isnan(wide).sum())
        moments.nan += nan_here
        moments.inf += wide.size - kept.size - nan_here
        if not kept.size:
            continue
        bounds = piece if exact else kept
        with np.errstate(over="ignore", invalid="ignore"):  # the largest floats have no square
            mean = float(kept.mean())
            spread = float(np.sum((kept - mean) ** 2))
            square = float(np.dot(kept, kept))
        low, high = bounds.min().item(), bounds.max().item()
        moments.merge(kept.size, mean, spread, square, low, high)
    return moments.stats(numel, exact)


def blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the entries of ``array`` in row-major order, in blocks of one dimension.

    A block is only good until the next one: its memory may be used again.
    """
    if not array.size:
        return
    flags = ["external_loop", "buffered"]
    with np.nditer(array, flags=flags, order="C", buffersize=BLOCK) as walk:  # type: ignore[call-overload]
        yield from walk


def magnitude(array: NDArray[Any]) -> NDArray[Any]:
    """Return the absolute values of complex numbers, and any other array as it is."""
    return np.abs(array) if array.dtype.kind == "c" else array
