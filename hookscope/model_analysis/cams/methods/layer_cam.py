"""LayerCAM: every position weighted by its own positive gradient."""

from __future__ import annotations

from torch import Tensor

from hookscope.model_analysis.cams.methods.layer_method import GradientLayerMethod


class LayerCam(GradientLayerMethod):
    """LayerCAM.

    The map is relu(sum_k relu(G_k) A_k), where A_k is channel k of the layer's output and G_k the
    gradient of the target's score there.

    P.-T. Jiang, C.-B. Zhang, Q. Hou, M.-M. Cheng, Y. Wei: LayerCAM: Exploring Hierarchical Class
    Activation Maps for Localization, 2021 (doi:10.1109/TIP.2021.3089943), equations 4 to 6.

    Example:
        >>> import torch
        >>> gradients = torch.tensor([[[[-3.0]], [[5.0]]]])
        >>> LayerCam.heat_map(torch.tensor([[[[-1.0]], [[2.0]]]]), gradients)
        tensor([[[10.]]])
    """

    @staticmethod
    def heat_map(activations: Tensor, gradients: Tensor) -> Tensor:
        """Return the maps (N, H, W) of values and gradients (N, K, H, W)."""
        return (gradients.relu() * activations).sum(1).relu()
