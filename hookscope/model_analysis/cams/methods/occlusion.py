"""Occlusion: the change of the score where a patch of the image is covered."""

from __future__ import annotations

from typing import Any

import torch

from hookscope.errors import RequestError
from hookscope.model_analysis.cams.baseline_image import baseline_image, baseline_name
from hookscope.model_analysis.cams.cam_input import CamInput, widen
from hookscope.model_analysis.cams.cam_method import CamMethod, CamResult
from hookscope.model_analysis.occlusion_drops import occlusion_drops
from hookscope.specs.cam_methods import PATCHES


class Occlusion(CamMethod):
    """Occlusion. It takes one run of the model for each patch.

    The map at a pixel is relu(S(x) - S(x')), where S is the target's score of the image x, and x'
    is x with the patch of this pixel from the baseline. The patches are squares side by side; those
    at the right and lower edges may be cut off.

    M. Zeiler, R. Fergus: Visualizing and Understanding Convolutional Networks, 2013
    (arXiv:1311.2901), section 4.2.

    Args:
        patch: side of a patch in pixels; None for an eighth of the shorter side of the image.
        baseline: ``zero``, ``black`` or ``white``, or a tensor that broadcasts to the images; None
            for ``zero``.
    """

    def __init__(self, patch: int | None = None, baseline: Any = None) -> None:
        self.patch = patch
        self.baseline = baseline

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps, and the signed change of the score as the attribution.

        Raises:
            RequestError: the patch is larger than the image.
        """
        score, image = inputs.score, inputs.image
        height, width = inputs.size
        side = self.patch or max(1, min(height, width) // PATCHES)
        if side > min(height, width):
            raise RequestError(
                f"A patch of {side} pixels is larger than the image, which is {height}x{width}.",
                f"Give a --patch of at most {min(height, width)}.",
            )
        output = inputs.run(image)
        score.loss(inputs.prepared, output)  # the class is that of the image as given
        start = baseline_image(inputs, self.baseline)
        every = slice(None)
        regions = [
            (every, every, slice(top, top + side), slice(left, left + side))
            for top in range(0, height, side)
            for left in range(0, width, side)
        ]
        attribution = torch.zeros(image.shape, dtype=torch.float64)
        drops = occlusion_drops(
            lambda values: score.each(inputs.run(values)),
            *(image, start, regions, inputs.report_progress),
        )
        for region, drop in zip(regions, drops, strict=True):
            attribution[region] = drop[:, None, None, None]
        metadata = {"patch": side, "baseline": baseline_name(self.baseline)}
        attribution = attribution.to(widen(image))
        return CamResult(
            attribution[:, 0].relu(), output, attribution=attribution, metadata=metadata
        )
