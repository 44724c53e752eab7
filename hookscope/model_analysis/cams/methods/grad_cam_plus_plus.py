"""Grad-CAM++: channels weighted by their positive gradients, position by position."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.model_analysis.cams.methods.layer_method import GradientLayerMethod, weighted_sum


class GradCamPlusPlus(GradientLayerMethod):
    """Grad-CAM++.

    The map is relu(sum_k w_k A_k) with w_k = sum_p a relu(G_k), where A_k is channel k of the
    layer's output, G_k the gradient of the target's score there, p runs over the positions and
    a = G_k^2 / (2 G_k^2 + sum(A_k) G_k^3). ``a`` is 0 where its denominator is 0.

    A. Chattopadhay, A. Sarkar, P. Howlader, V. N. Balasubramanian: Grad-CAM++: Generalized
    Gradient-Based Visual Explanations for Deep Convolutional Networks, 2018 (arXiv:1710.11063),
    equations 5, 6 and 19 for the score exp(S). Its factor exp(S) scales the whole map of an image
    and is left out.

    Example:
        >>> ones = torch.ones(1, 1, 1, 2)
        >>> GradCamPlusPlus.heat_map(ones, ones)  # a = 1 / (2 + 2)
        tensor([[[0.5000, 0.5000]]])
    """

    @staticmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, H, W) of values and gradients (N, K, H, W)."""
        # Both sides of the fraction are divided by G^2, which underflows for small gradients.
        denominator = 2 + activations.sum((2, 3), keepdim=True) * gradients
        zero = denominator == 0
        shares = torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, denominator))
        return weighted_sum(activations, (shares * gradients.relu()).sum((2, 3)))
