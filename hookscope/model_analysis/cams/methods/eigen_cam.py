"""Eigen-CAM: the projection on the first principal direction of the channels."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.model_analysis.cams.methods.layer_method import LayerMethod, finite_on_grid


class EigenCam(LayerMethod):
    """Eigen-CAM. It does not depend on the target.

    The map is relu(A v), where A is the layer's output as a matrix of positions by channels, and v
    its first right singular vector. The sign of a singular vector is arbitrary. The one is taken
    with which the map's entries add up to 0 or more.

    M. B. Muhammad, M. Yeasin: Eigen-CAM: Class Activation Map using Principal Components, 2020
    (arXiv:2008.00299), equation 3.

    Example:
        >>> EigenCam.heat_map(torch.tensor([[[[3.0, 0.0]], [[4.0, 0.0]]]]))
        tensor([[[5., 0.]]])
    """

    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the maps of the layer's output.

        Raises:
            RequestError: a value is NaN or infinite.
        """
        return self.heat_map(finite_on_grid(candidate, "a singular vector"))

    @staticmethod
    def heat_map(activations: Tensor) -> Tensor:
        """Return the maps (N, H, W) of values (N, K, H, W), computed in float64."""
        rows = activations.flatten(2).transpose(1, 2).double()
        direction = torch.linalg.svd(rows, full_matrices=False).Vh[:, 0]
        maps = (rows @ direction.unsqueeze(2)).squeeze(2)
        maps = torch.where(maps.sum(1, keepdim=True) < 0, -maps, maps).relu()
        return maps.to(activations.dtype).reshape(len(maps), *activations.shape[2:])
