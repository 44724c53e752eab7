"""Centred kernel alignment (CKA), from sums over products of features or of rows.

Kornblith, Norouzi, Lee, Hinton: "Similarity of Neural Network Representations Revisited" (ICML
2019). With features X and Y of the same N rows, their columns centred, linear CKA is

    CKA(X, Y) = |Y'X|^2 / (|X'X| |Y'Y|)

with the Frobenius norm. With the products of rows K = XX' and L = YY' the same number is
tr(KL) / sqrt(tr(KK) tr(LL)); other kernels are centred with H = I - 11'/N: HKH.

The estimate is biased upwards if there are more features than rows. The debiased one replaces the
Hilbert-Schmidt independence criterion by its unbiased estimator: Song, Smola, Gretton, Bedo,
Borgwardt, "Feature Selection via Dependence Maximization" (JMLR 2012), equation 5; for CKA: Nguyen,
Raghu, Kornblith, "Do Wide and Deep Networks Learn the Same Things?" (ICLR 2021). With centred
columns, the squared lengths of rows r_i = |x_i|^2 and s_i = |y_i|^2, it is

    HSIC(X, Y) ~ |Y'X|^2 - N / (N - 2) sum_i r_i s_i + |X|^2 |Y|^2 / ((N - 1)(N - 2))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hookscope.file_analysis.similarity.layer_rows import Matrix


@dataclass(frozen=True)
class Alignment:
    """Sums over a pair of layers with centred features."""

    products: float
    row_products: float
    squares: tuple[float, float]

    def hsic(self, rows: int, *, debiased: bool) -> float:
        """Return the independence criterion, without a factor that CKA does not depend on.

        Example:
            >>> Alignment(14.0, 9.0, (3.0, 5.0)).hsic(5, debiased=True)
            0.25
        """
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

    Example:
        >>> cka(3.0, 4.0, 9.0), cka(0.0, 0.0, 1.0)
        (0.5, nan)
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
    squares = np.diagonal(gram).copy()
    gram *= -2
    gram += squares
    gram += squares[:, None]
    np.maximum(gram, 0, out=gram)
    np.fill_diagonal(gram, 0)
    median = float(np.median(gram))
    if not median > 0:
        gram.fill(math.nan)
        return gram
    gram /= -2 * median
    return np.exp(gram, out=gram)
