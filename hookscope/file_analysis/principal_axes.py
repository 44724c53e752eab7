"""Principal axes of the rows of a layer, which are read in blocks.

Pearson, "On lines and planes of closest fit to systems of points in space" (1901). The axes are the
eigenvectors of the products of centred features; with fewer rows than features, they come from the
products of rows, which have the same eigenvalues.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hookscope.file_analysis.layer_rows import (
    Matrix,
    RowStream,
    centred_blocks,
    gram_matrix,
    row_preparation,
)
from hookscope.file_analysis.similarity_measures import spectrum_of
from hookscope.specs.features_options import EUCLIDEAN


@dataclass(frozen=True)
class PrincipalAxes:
    """Axes of the largest variance, and the share of the variance along each.

    ``directions`` (features, axes) have length 1, or 0 where there is no variance left.
    """

    mean: Matrix
    directions: Matrix
    shares: Matrix

    def project(self, stream: RowStream) -> Matrix:
        """Return the coordinates of rows: (rows, axes)."""
        blocks = centred_blocks(stream, [0], [self.mean])
        return np.concatenate([block @ self.directions for [block] in blocks])


def principal_axes(stream: RowStream, mean: Matrix, count: int, memory: int) -> PrincipalAxes:
    """Return the axes of the only layer of a stream, whose rows are not all equal."""
    width = stream.layers[0].width
    directions, shares = np.zeros((width, count)), np.zeros(count)
    if width <= len(stream):
        products = np.zeros((width, width))
        for [block] in centred_blocks(stream, [0], [mean]):
            products += block.T @ block
    else:
        products = gram_matrix(stream, 0, row_preparation(EUCLIDEAN, mean), memory)
    spectrum = spectrum_of(products)
    vectors = spectrum.vectors[:, :count]
    if width <= len(stream):
        directions[:, : vectors.shape[1]] = vectors
    else:
        at = 0
        for [block] in centred_blocks(stream, [0], [mean]):
            part = vectors[at : at + len(block)]
            directions[:, : vectors.shape[1]] += block.T @ part
            at += len(block)
        lengths = np.linalg.norm(directions, axis=0)
        directions /= np.where(lengths > 0, lengths, 1)
    # The sign of an axis is arbitrary: its largest entry is positive, so that runs agree.
    largest = directions[np.argmax(np.abs(directions), axis=0), np.arange(count)]
    directions *= np.where(largest < 0, -1, 1)
    shares[: vectors.shape[1]] = spectrum.values[:count] ** 2 / np.trace(products)
    return PrincipalAxes(mean, directions, shares)
