"""Saliency maps: the gradient at the image."""

from __future__ import annotations

from torch import Tensor

from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.cams.cam_method import CamMethod, CamResult


class Saliency(CamMethod):
    """Saliency map.

    The map is max_c |g_c|, where g is the gradient of the target's score at the image, and c runs
    over the image's channels.

    K. Simonyan, A. Vedaldi, A. Zisserman: Deep Inside Convolutional Networks: Visualising Image
    Classification Models and Saliency Maps, 2014 (arXiv:1312.6034), section 3.1.
    """

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps from one run of the model."""
        output, gradient = inputs.gradient_at(inputs.image)
        return CamResult(channel_maximum(gradient), output, attribution=gradient)


def channel_maximum(gradient: Tensor) -> Tensor:
    """Return max_c |g_c| of a gradient at images: (N, C, H, W) to (N, H, W)."""
    return gradient.abs().amax(1)
