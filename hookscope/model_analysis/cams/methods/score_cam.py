"""Score-CAM: channels weighted by the score of the image that they mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.model_analysis.cams.methods.layer_method import (
    LayerMethod,
    finite_on_grid,
    weighted_sum,
)


class ScoreCam(LayerMethod):
    """Score-CAM. It takes one run of the model for each channel.

    The map is relu(sum_k w_k A_k), where A_k is channel k of the layer's output and w the softmax
    over k of the target's score for the image times M_k. The mask M_k is A_k at the image's size,
    its range scaled to 0..1.

    H. Wang, Z. Wang, M. Du, F. Yang, Z. Zhang, S. Ding, P. Mardziel, X. Hu: Score-CAM:
    Score-Weighted Visual Explanations for Convolutional Neural Networks, 2020 (arXiv:1910.01279),
    equation 5.
    """

    def maps_of(self, inputs: CamInput, candidate: LayerCandidate) -> Tensor:
        """Return the maps of the layer's output. Each run has the batch size of the images.

        Raises:
            RequestError: a value is NaN or infinite.
        """
        activations = finite_on_grid(candidate, "the range of a mask")
        scores, count = [], activations.shape[1]
        for channel in range(count):
            mask = channel_mask(activations[:, channel], inputs.size).to(inputs.image)
            masked = inputs.image * mask.expand_as(inputs.image)
            scores.append(inputs.score.each(inputs.run(masked)))
            inputs.report_progress(channel + 1, count)
        weights = torch.stack(scores, 1).softmax(1)
        return weighted_sum(activations, weights.to(activations))


def channel_mask(channel: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a channel (N, h, w) at ``size``, bilinear, scaled to 0..1: (N, 1, H, W).

    A channel of one value becomes 0.

    Example:
        >>> channel_mask(torch.tensor([[[1.0, 3.0]]]), (1, 2))
        tensor([[[[0., 1.]]]])
    """
    large = F.interpolate(channel.unsqueeze(1), size, mode="bilinear", align_corners=False)
    low, high = large.amin((2, 3), keepdim=True), large.amax((2, 3), keepdim=True)
    return (large - low) / torch.where(high > low, high - low, 1.0)
