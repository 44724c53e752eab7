"""Measures of the similarity of two layers: CKA, CCA and its relatives, distances between rows.

Features are centred. A pass computes as many products as fit into the memory; a product that does
not fit alone is computed in tiles of columns, if its sum of squares is all that is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.layer_rows import Matrix, RowMap, RowStream, centred_blocks
from hookscope.specs.features_options import EUCLIDEAN

VARIANCE = 0.99
_PAIR_COPIES = 12  # matrices of all pairs of two blocks that are in memory at once
_NONE = 1e-13  # of the largest eigenvalue: rounding errors of a matrix without full rank


@dataclass(frozen=True)
class ProductTile:
    """The product X'Y of two layers, for the columns of X from ``start`` to ``stop``."""

    x: int
    y: int
    start: int
    stop: int
    bytes: int


def plan_tiles(
    pairs: Sequence[tuple[int, int]], widths: Sequence[int], memory: int
) -> list[list[ProductTile]]:
    """Return the tiles of all pairs, in groups that fit into ``memory`` and take one pass each."""
    tiles = []
    for x, y in pairs:
        step = max(memory // (8 * widths[y]), 1)
        for start in range(0, widths[x], step):
            stop = min(start + step, widths[x])
            tiles.append(ProductTile(x, y, start, stop, 8 * (stop - start) * widths[y]))
    groups: list[list[ProductTile]] = []
    room = 0
    for tile in tiles:
        if not groups or tile.bytes > room:
            groups.append([])
            room = memory
        groups[-1].append(tile)
        room -= tile.bytes
    return groups


def tile_products(
    stream: RowStream, means: Sequence[Matrix], group: Sequence[ProductTile]
) -> list[Matrix]:
    """Return the product of each tile of a group, in one pass: (stop - start, width of Y)."""
    widths = [layer.width for layer in stream.layers]
    chosen = sorted({number for tile in group for number in (tile.x, tile.y)})
    sums = [np.zeros((tile.stop - tile.start, widths[tile.y])) for tile in group]
    for blocks in centred_blocks(stream, chosen, means):
        block = dict(zip(chosen, blocks, strict=True))
        for total, tile in zip(sums, group, strict=True):
            total += block[tile.x][:, tile.start : tile.stop].T @ block[tile.y]
    return sums


def squared_products(
    stream: RowStream, means: Sequence[Matrix], pairs: Sequence[tuple[int, int]], memory: int
) -> dict[tuple[int, int], float]:
    """Return |X'Y|^2 of each pair of layers."""
    widths = [layer.width for layer in stream.layers]
    found = dict.fromkeys(pairs, 0.0)
    for group in plan_tiles(pairs, widths, memory):
        for tile, product in zip(group, tile_products(stream, means, group), strict=True):
            found[tile.x, tile.y] += float(np.vdot(product, product))
    return found


def whole_products(
    stream: RowStream, means: Sequence[Matrix], pairs: Sequence[tuple[int, int]], memory: int
) -> Iterator[tuple[tuple[int, int], Matrix]]:
    """Yield each pair of layers with the whole X'Y, (width of X, width of Y)."""
    widths = [layer.width for layer in stream.layers]
    for x, y in pairs:
        if (size := 8 * widths[x] * widths[y]) > memory:
            names = " and ".join(dict.fromkeys(stream.layers[i].key for i in (x, y)))
            raise RequestError(
                f"The products of the features of {names} ({widths[x]} by {widths[y]}) take"
                f" {size:,} bytes, and --memory is {memory:,}.",
                "Extract with --reduce mean, increase --memory, or use --by cka, which needs them"
                " in parts only.",
            )
    for group in plan_tiles(pairs, widths, memory):
        products = tile_products(stream, means, group)
        yield from (((t.x, t.y), product) for t, product in zip(group, products, strict=True))


def squared_lengths(
    stream: RowStream, means: Sequence[Matrix], chosen: Sequence[int]
) -> tuple[dict[int, float], dict[tuple[int, int], float]]:
    """Return |X|^2 of each layer, and the sum over rows of |x_i|^2 |y_i|^2 of each pair."""
    lengths = np.zeros(len(chosen))
    pairs = np.zeros((len(chosen), len(chosen)))
    for blocks in centred_blocks(stream, chosen, means):
        rows = np.stack([np.einsum("ij,ij->i", block, block) for block in blocks])
        lengths += rows.sum(axis=1)
        pairs += rows @ rows.T
    numbers = list(enumerate(chosen))
    return (
        {x: float(lengths[i]) for i, x in numbers},
        {(x, y): float(pairs[i, j]) for i, x in numbers for j, y in numbers},
    )


@dataclass(frozen=True)
class Alignment:
    """Sums over a pair of layers with centred features."""

    products: float
    row_products: float
    squares: tuple[float, float]

    def hsic(self, rows: int, *, debiased: bool) -> float:
        """Return the independence criterion, without a factor that CKA does not depend on."""
        if not debiased:
            return self.products
        x, y = self.squares
        return (
            self.products
            - rows / (rows - 2) * self.row_products
            + x * y / ((rows - 1) * (rows - 2))
        )


def alignment_of_grams(k: Matrix, l: Matrix) -> Alignment:  # noqa: E741 - the paper's names
    """Return the sums of a pair of layers from their centred products of rows, (rows, rows)."""
    r, s = np.diagonal(k), np.diagonal(l)
    products = sum(float(np.dot(a, b)) for a, b in zip(k, l, strict=True))
    return Alignment(products, float(np.dot(r, s)), (float(r.sum()), float(s.sum())))


def cka(xy: float, xx: float, yy: float) -> float:
    """Return the alignment from the criterion of both layers and of each with itself.

    NaN if the criterion of a layer with itself is not positive: it is constant, or, debiased, has
    less than no structure.
    """
    if not (xx > 0 and yy > 0):
        return math.nan
    return xy / (math.sqrt(xx) * math.sqrt(yy))


def centred_kernel(kernel: Matrix) -> Matrix:
    """Centre a symmetric kernel matrix in place: HKH; return it."""
    means = kernel.mean(axis=0)
    kernel -= means
    kernel -= means[:, None]
    kernel += means.mean()
    return kernel


def rbf_kernel(gram: Matrix) -> Matrix:
    """Turn products of rows into the kernel exp(-d^2 / (2 s^2)), in place; return it.

    d is the Euclidean distance of two rows, and s^2 the median of d^2 over all pairs, a row with
    itself included, as in the code of Kornblith et al. (their threshold 1.0). NaN if that is 0.
    """
    _square_distances(gram)
    np.fill_diagonal(gram, 0)
    median = float(np.median(gram))
    if not median > 0:
        gram.fill(math.nan)
        return gram
    gram /= -2 * median
    return np.exp(gram, out=gram)


def _square_distances(gram: Matrix) -> None:
    """Turn products of rows into the squared distances between them, in place."""
    squares = np.diagonal(gram).copy()
    gram *= -2
    gram += squares
    gram += squares[:, None]
    np.maximum(gram, 0, out=gram)  # rounding


def pair_distances(gram: Matrix, distance: str) -> Matrix:
    """Return the distances of all pairs of different rows, float64 (N (N - 1) / 2,)."""
    if distance == EUCLIDEAN:
        _square_distances(gram)
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
    """Return the ranks of values from 1; equal values share the mean of their ranks."""
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
    stream: RowStream,
    layer: int,
    rows: NDArray[np.intp],
    prepare: RowMap,
    neighbors: int,
    memory: int,
    distance: str,
) -> tuple[NDArray[np.intp], Matrix]:
    """Return the rows of the stream that are nearest to some of them; of equal ones the first.

    Both results are (rows, neighbors): the positions in the stream, and what orders them: for
    ``euclidean`` the squared distance, else the negative product of the prepared rows.
    """
    source = stream.layers[layer]
    # A block has its rows, those of another block, and some matrices of all their pairs.
    size = min(memory // (4 * 8 * source.width), math.isqrt(memory // (_PAIR_COPIES * 8)))
    near, gaps = np.empty((2, len(rows), neighbors))
    at = 0
    for part in replace(stream, numbers=rows).parts(size):
        left = prepare(source.matrix(part))
        own = np.searchsorted(stream.numbers, part)
        found = np.zeros((len(part), 0), np.intp), np.zeros((len(part), 0))
        start = 0
        for other in stream.parts(size):
            pairs = _pair_gaps(left, prepare(source.matrix(other)), distance)
            inside = np.flatnonzero((own >= start) & (own < start + len(other)))
            pairs[inside, own[inside] - start] = math.inf
            found = _smallest(found, pairs, start, neighbors)
            start += len(other)
        order = np.argsort(found[1], axis=1, kind="stable")
        near[at : at + len(part)], gaps[at : at + len(part)] = (
            np.take_along_axis(values, order, 1) for values in found
        )
        at += len(part)
        stream.advance(len(part))
    return near.astype(np.intp), gaps


def _pair_gaps(left: Matrix, right: Matrix, distance: str) -> Matrix:
    """What orders the pairs of two blocks of rows; squares below their rounding are 0."""
    products: Matrix = left @ right.T
    if distance != EUCLIDEAN:
        return -products
    squares = np.sum(left**2, axis=1)[:, None] + np.sum(right**2, axis=1)
    gaps: Matrix = squares - 2 * products
    gaps[gaps < 8 * np.finfo(np.float64).eps * squares] = 0
    return gaps


def _smallest(
    found: tuple[NDArray[np.intp], Matrix], pairs: Matrix, start: int, count: int
) -> tuple[NDArray[np.intp], Matrix]:
    """The first ``count`` smallest of those found and of a block, in the order of the stream."""
    gaps = np.concatenate([found[1], pairs], axis=1)
    if gaps.shape[1] > count:
        last = np.partition(gaps, count - 1, axis=1)[:, count - 1 : count]
        below, equal = gaps < last, gaps == last
        missing = count - below.sum(axis=1, keepdims=True)
        chosen = below | (equal & (np.cumsum(equal, axis=1) <= missing))
        places = np.nonzero(chosen)[1].reshape(len(gaps), count)
    else:
        places = np.broadcast_to(np.arange(gaps.shape[1]), gaps.shape)
    earlier = found[0].shape[1]
    new = np.broadcast_to(np.arange(start, start + pairs.shape[1]), pairs.shape)
    names = np.concatenate([found[0], new], axis=1) if earlier else new
    return np.take_along_axis(names, places, 1), np.take_along_axis(gaps, places, 1)


def shared_share(a: NDArray[np.intp], b: NDArray[np.intp]) -> float:
    """Return the mean share of neighbours that a row has in both, from 0 to 1."""
    shared = sum(np.isin(one, other).sum() for one, other in zip(a, b, strict=True))
    return float(shared) / a.size


@dataclass(frozen=True)
class Spectrum:
    """Singular values of centred features and their vectors, the largest first."""

    values: Matrix
    vectors: Matrix

    def leading(self) -> Spectrum:
        """Return the first ones, as many as have 99% of the variance."""
        shares = np.cumsum(self.values**2) / np.sum(self.values**2)
        # Rounding may leave the last share a little below the limit.
        count = min(int(np.searchsorted(shares, VARIANCE)) + 1, len(shares))
        return Spectrum(self.values[:count], self.vectors[:, :count])


def spectrum_of(products: Matrix) -> Spectrum:
    """Return the spectrum of X from X'X or XX', without singular values of 0."""
    squares, vectors = np.linalg.eigh(products)
    squares, vectors = squares[::-1], vectors[:, ::-1]
    count = int(np.sum(squares > _NONE * max(squares[0], 0)))
    return Spectrum(np.sqrt(squares[:count]), vectors[:, :count])


def procrustes(nuclear: float, squares: tuple[float, float]) -> float:
    """Return the similarity from the sum of singular values of X'Y, and |X|^2 and |Y|^2."""
    if not min(squares) > 0:
        return math.nan
    return nuclear / (math.sqrt(squares[0]) * math.sqrt(squares[1]))


def nuclear_norm(matrix: Matrix) -> float:
    """Return the sum of the singular values."""
    return float(np.linalg.svd(matrix, compute_uv=False).sum())


def nuclear_norm_of_rows(x: Spectrum, y: Spectrum) -> float:
    """Return the sum of the singular values of X'Y, from the spectra of XX' and YY'.

    X = U S V' and Y = W T Z', so X'Y has the singular values of S U'W T.
    """
    return nuclear_norm(x.values[:, None] * (x.vectors.T @ y.vectors) * y.values)


def svcca_of_rows(x: Spectrum, y: Spectrum) -> float:
    """Return the mean canonical correlation of two layers from leading spectra of XX' and YY'."""
    return _mean_correlation(x.vectors.T @ y.vectors)


def svcca_of_features(x: Spectrum, y: Spectrum, products: Matrix) -> float:
    """Return the same from leading spectra of X'X and Y'Y, and X'Y."""
    return _mean_correlation((x.vectors / x.values).T @ products @ (y.vectors / y.values))


def _mean_correlation(matrix: Matrix) -> float:
    """The mean of the canonical correlations: singular values of the product of two bases."""
    if not matrix.size:
        return math.nan
    return float(np.clip(np.linalg.svd(matrix, compute_uv=False), 0, 1).mean())
