"""Distances between the rows of a layer, and how two layers are compared by them.

Representational similarity analysis (RSA): Kriegeskorte, Mur, Bandettini, "Representational
similarity analysis - connecting the branches of systems neuroscience" (Frontiers in Systems
Neuroscience, 2008). Two layers are similar if rows that are far apart in one are far apart in the
other: the correlation of the N (N - 1) / 2 distances. The distances and correlations are those of
thingsvision (``compute_rdm`` and ``correlate_rdms``).

Mutual nearest neighbours: Huh, Cheung, Wang, Isola, "The Platonic Representation Hypothesis" (ICML
2024): the mean share of the k nearest rows of each row that are the same in both layers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.similarity.layer_rows import Matrix, RowMap, RowStream
from hookscope.specs.similarity_options import EUCLIDEAN


def pair_distances(gram: Matrix, distance: str) -> Matrix:
    """Return the distances of all pairs of different rows, float64 (N (N - 1) / 2,)."""
    if distance == EUCLIDEAN:
        squares = np.diagonal(gram).copy()
        gram *= -2
        gram += squares
        gram += squares[:, None]
        np.maximum(gram, 0, out=gram)  # rounding
        np.sqrt(gram, out=gram)
    else:
        np.subtract(1, gram, out=gram)
    count = len(gram)
    pairs = np.empty(count * (count - 1) // 2)
    at = 0
    for row in range(count - 1):
        pairs[at : at + count - 1 - row] = gram[row, row + 1 :]
        at += count - 1 - row
    return pairs


def average_ranks(values: Matrix) -> Matrix:
    """Return the ranks of values from 1; equal values share the mean of their ranks.

    Example:
        >>> average_ranks(np.array([0.5, 0.1, 0.5]))
        array([2.5, 1. , 2.5])
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(starts[1:], len(values))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat((starts + 1 + ends) / 2, ends - starts)
    return ranks


def standardized(values: Matrix) -> Matrix:
    """Return values minus their mean, of length 1, in place; NaN if they are all equal."""
    if not (values.max() > values.min()):
        return np.full_like(values, math.nan)
    values -= values.mean()
    values /= math.sqrt(float(np.dot(values, values)))
    return values


def nearest_rows(
    stream: RowStream, layer: int, prepare: RowMap, neighbors: int, memory: int, distance: str
) -> NDArray[np.intp]:
    """Return the positions of the nearest other rows of each row: (rows, neighbors).

    Of rows at the same distance the first ones are taken. All rows are read once for each block of
    rows, which is as large as ``memory`` allows.
    """
    count, source = len(stream), stream.layers[layer]
    near = np.empty((count, neighbors), np.intp)
    # The distances of a block to all rows, and their order; and two blocks of rows.
    rows = memory // (3 * 8 * count + 2 * 8 * source.width)
    at = 0
    for part in stream.parts(rows):
        left = prepare(source.matrix(part))
        distances = np.empty((len(part), count))
        start = 0
        for other in stream.parts(rows):
            right = prepare(source.matrix(other))
            products = left @ right.T
            if distance == EUCLIDEAN:
                # |a - b|^2 without |a|^2, which is the same for the whole row.
                products = 2 * products - np.sum(right**2, axis=1)
            distances[:, start : start + len(other)] = -products
            start += len(other)
        distances[np.arange(len(part)), np.arange(at, at + len(part))] = math.inf
        near[at : at + len(part)] = np.argsort(distances, axis=1, kind="stable")[:, :neighbors]
        at += len(part)
        stream.advance(len(part))
    return near


def shared_share(a: NDArray[np.intp], b: NDArray[np.intp]) -> float:
    """Return the mean share of neighbours that a row has in both, from 0 to 1.

    Example:
        >>> shared_share(np.array([[1, 2], [0, 2]]), np.array([[2, 1], [2, 3]]))
        0.75
    """
    shared = sum(np.isin(one, other).sum() for one, other in zip(a, b, strict=True))
    return float(shared) / a.size
