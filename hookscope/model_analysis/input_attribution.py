"""Attributions to the input that ``attribute`` and ``cam`` share: path integral and occlusion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hookscope.files.progress import Progress


def integrate_gradient(
    gradient_at: Callable[[Tensor], Tensor],
    start: Tensor,
    end: Tensor,
    steps: int,
    progress: Progress | None = None,
) -> Tensor:
    """Return (x - b) times the mean gradient from the baseline b to the input x, in float64.

    This is the attribution of integrated gradients (M. Sundararajan, A. Taly, Q. Yan: Axiomatic
    Attribution for Deep Networks, 2017, arXiv:1703.01365), by Gauss-Legendre quadrature.

    Example:
        >>> end = torch.tensor([3.0])
        >>> integrate_gradient(lambda x: 2 * x, torch.zeros(1), end, 1)  # of x squared
        tensor([9.], dtype=torch.float64)
    """
    difference = end - start
    total = torch.zeros(end.shape, dtype=torch.float64)
    for number, (position, weight) in enumerate(quadrature_points(steps)):
        gradient = gradient_at(start + position * difference)
        total += weight * gradient.detach().cpu().double()
        if progress is not None:
            progress(number + 1, steps)
    return total * difference.cpu().double()


def quadrature_points(steps: int) -> list[tuple[float, float]]:
    """Return the positions in 0..1 at which an integral is sampled, each with its weight.

    Gauss-Legendre quadrature: exact for polynomials of degree 2 steps - 1.

    Example:
        >>> quadrature_points(1)
        [(0.5, 1.0)]
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return [(float(x + 1) / 2, float(w) / 2) for x, w in zip(nodes, weights, strict=True)]


def occlusion_drops(
    score_of: Callable[[Tensor], Tensor],
    values: Tensor,
    baseline: Tensor,
    regions: Sequence[tuple[slice | int, ...]],
    progress: Progress | None = None,
) -> Iterator[Tensor]:
    """Yield the score of the input less that with one region of it from the baseline.

    M. Zeiler, R. Fergus: Visualizing and Understanding Convolutional Networks, 2013
    (arXiv:1311.2901), section 4.2.
    """
    whole = score_of(values).detach().cpu().double()
    for number, region in enumerate(regions):
        occluded = values.detach().clone()
        occluded[region] = baseline[region]
        yield whole - score_of(occluded).detach().cpu().double()
        if progress is not None:
            progress(number + 1, len(regions))
