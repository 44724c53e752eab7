"""Procrustes similarity and SVCCA, from products of features (X'Y) or of rows (XX').

Procrustes: Schoenemann, "A generalized solution of the orthogonal Procrustes problem"
(Psychometrika, 1966); for layers: Ding, Denain, Steinhardt, "Grounding Representation Similarity
with Statistical Testing" (NeurIPS 2021). With centred X and Y of norm 1, the least squared distance
over all rotations is d = 2 - 2 |X'Y|_*, with the sum of singular values. The similarity here is
1 - d / 2, which is |X'Y|_* / (|X| |Y|).

SVCCA: Raghu, Gilmer, Yosinski, Sohl-Dickstein, "SVCCA: Singular Vector Canonical Correlation
Analysis for Deep Learning Dynamics and Interpretability" (NeurIPS 2017). Each layer is projected on
its first singular vectors, as many as have 99% of the variance; the similarity is the mean of the
canonical correlations of the projections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hookscope.file_analysis.similarity.layer_rows import Matrix

VARIANCE = 0.99
_NONE = 1e-13  # of the largest eigenvalue: rounding errors of a matrix without full rank


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
