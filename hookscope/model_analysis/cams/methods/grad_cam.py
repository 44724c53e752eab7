"""Grad-CAM: channels weighted by their mean gradient."""

from __future__ import annotations

from torch import Tensor

from hookscope.model_analysis.cams.methods.layer_method import GradientLayerMethod, weighted_sum


class GradCam(GradientLayerMethod):
    """Grad-CAM.

    The map is relu(sum_k w_k A_k), where A_k is channel k of the layer's output and w_k the mean
    over all positions of the gradient of the target's score at A_k.

    R. R. Selvaraju, M. Cogswell, A. Das, R. Vedantam, D. Parikh, D. Batra: Grad-CAM: Visual
    Explanations from Deep Networks via Gradient-based Localization, 2017 (arXiv:1610.02391),
    equations 1 and 2.

    Example:
        >>> import torch
        >>> GradCam.heat_map(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 5.0]]]]))
        tensor([[[4., 8.]]])
    """

    @staticmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, H, W) of values and gradients (N, K, H, W)."""
        return weighted_sum(activations, gradients.mean((2, 3)))
