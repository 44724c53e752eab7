"""Products of the features of pairs of layers, X'Y, summed over the rows in few passes.

Features are centred. A pass computes as many products as fit into the memory; a product that does
not fit alone is computed in tiles of columns, if its sum of squares is all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hookscope.errors import RequestError
from hookscope.file_analysis.similarity.layer_rows import Matrix, RowStream, centred_blocks


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
    """Return the tiles of all pairs, in groups that fit into ``memory`` and take one pass each.

    Example:
        >>> [len(group) for group in plan_tiles([(0, 0), (0, 1)], [100, 50], 45_000)]
        [1, 1, 1]
    """
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
