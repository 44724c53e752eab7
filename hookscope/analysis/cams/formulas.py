"""The mathematics of the maps: one function each, on activations and gradients.

Everywhere ``activations`` is what a layer returned, ``gradients`` the gradient of the target's
score at it, both of shape (N, K, H, W) with K channels, and the map is (N, H, W), never negative.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def gradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """relu(sum_k w_k A_k), where w_k is the mean of the gradient over all positions.

    R. R. Selvaraju et al.: Grad-CAM, 2017 (arXiv:1610.02391), equations 1 and 2.

    Example:
        >>> gradcam(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 5.0]]]]))
        tensor([[[4., 8.]]])
    """
    return weighted(activations, gradients.mean((2, 3)))


def gradcam_plus_plus(activations: Tensor, gradients: Tensor) -> Tensor:
    """relu(sum_k w_k A_k) with w_k = sum_p a relu(G), a = G^2 / (2 G^2 + sum(A_k) G^3).

    A. Chattopadhay et al.: Grad-CAM++, 2018 (arXiv:1710.11063), equations 5, 6 and 19 for the
    score exp(S), whose factor exp(S) scales the whole map of an image and is left out. ``a`` is 0
    where its denominator is.

    Example:
        >>> gradcam_plus_plus(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))  # a = 1 / (2 + 2)
        tensor([[[0.5000, 0.5000]]])
    """
    # Both sides of the fraction divided by G^2, which would vanish for small gradients.
    below = 2 + activations.sum((2, 3), keepdim=True) * gradients
    shares = torch.where(below == 0, 0.0, 1 / torch.where(below == 0, 1.0, below))
    return weighted(activations, (shares * gradients.relu()).sum((2, 3)))


def hirescam(activations: Tensor, gradients: Tensor) -> Tensor:
    """relu(sum_k G_k A_k): every position with its own gradient.

    R. L. Draelos, L. Carin: Use HiResCAM instead of Grad-CAM, 2020 (arXiv:2011.08891).
    """
    return (gradients * activations).sum(1).relu()


def layercam(activations: Tensor, gradients: Tensor) -> Tensor:
    """relu(sum_k relu(G_k) A_k).

    P.-T. Jiang et al.: LayerCAM, 2021 (doi:10.1109/TIP.2021.3089943), equations 4 to 6.
    """
    return (gradients.relu() * activations).sum(1).relu()


OF_GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gradcam": gradcam,
    "gradcam++": gradcam_plus_plus,
    "hirescam": hirescam,
    "layercam": layercam,
}


def eigencam(activations: Tensor) -> Tensor:
    """relu(A v), A as positions by channels, v its first right singular vector.

    M. B. Muhammad, M. Yeasin: Eigen-CAM, 2020 (arXiv:2008.00299), equation 3. A singular vector
    has no sign of its own: it gets the one with which the map's entries add up to 0 or more.

    Example:
        >>> eigencam(torch.tensor([[[[3.0, 0.0]], [[4.0, 0.0]]]]))
        tensor([[[5., 0.]]])
    """
    rows = activations.flatten(2).transpose(1, 2).double()
    first = torch.linalg.svd(rows, full_matrices=False).Vh[:, 0]
    found = (rows @ first.unsqueeze(2)).squeeze(2)
    found = torch.where(found.sum(1, keepdim=True) < 0, -found, found).relu()
    return found.to(activations.dtype).reshape(len(found), *activations.shape[2:])


def weighted(activations: Tensor, weights: Tensor) -> Tensor:
    """relu(sum_k w_k A_k) for one weight a channel, of shape (N, K)."""
    return (weights[:, :, None, None] * activations).sum(1).relu()


def mask(channel: Tensor, size: tuple[int, int]) -> Tensor:
    """Return one channel (N, H, W) brought to ``size`` bilinearly, its range then to 0..1.

    H. Wang et al.: Score-CAM, 2020 (arXiv:1910.01279), equation 5. A flat channel becomes 0.
    """
    large = F.interpolate(channel.unsqueeze(1), size, mode="bilinear", align_corners=False)
    low, high = large.amin((2, 3), keepdim=True), large.amax((2, 3), keepdim=True)
    return (large - low) / torch.where(high > low, high - low, 1.0)


def strongest(gradients: Tensor) -> Tensor:
    """Return max_c |g_c| of gradients at an image, (N, C, H, W) to (N, H, W).

    K. Simonyan, A. Vedaldi, A. Zisserman: Deep Inside Convolutional Networks, 2014
    (arXiv:1312.6034), section 3.1.
    """
    return gradients.abs().amax(1)


def nodes(steps: int) -> list[tuple[float, float]]:
    """Return where on the way from 0 to 1 an integral is taken, and the weight there.

    Gauss-Legendre quadrature: exact for polynomials of degree 2 steps - 1.

    Example:
        >>> nodes(1)
        [(0.5, 1.0)]
    """
    places, weights = np.polynomial.legendre.leggauss(steps)
    return [(float(p + 1) / 2, float(w) / 2) for p, w in zip(places, weights, strict=True)]
