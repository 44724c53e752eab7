"""HiResCAM: every position weighted by its own gradient."""

from __future__ import annotations

from torch import Tensor

from hookscope.model_analysis.cams.methods.layer_method import GradientLayerMethod


class HiResCam(GradientLayerMethod):
    """HiResCAM.

    The map is relu(sum_k G_k A_k), where A_k is channel k of the layer's output and G_k the
    gradient of the target's score there: every position has its own gradient as weight.

    R. L. Draelos, L. Carin: Use HiResCAM instead of Grad-CAM for faithful explanations of
    convolutional neural networks, 2020 (arXiv:2011.08891).

    Example:
        >>> import torch
        >>> HiResCam.heat_map(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, -5.0]]]]))
        tensor([[[3., 0.]]])
    """

    @staticmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, H, W) of values and gradients (N, K, H, W)."""
        return (gradients * activations).sum(1).relu()
