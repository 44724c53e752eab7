"""Gradient times input: the gradient at the image, weighted by the image."""

from __future__ import annotations

from hookscope.model_analysis.cams.cam_input import CamInput, widen
from hookscope.model_analysis.cams.cam_method import CamMethod, CamResult


class GradientTimesInput(CamMethod):
    """Gradient times input.

    The attribution of entry i of the image x is x_i g_i, where g is the gradient of the target's
    score at x. The map is the absolute sum over the image's channels.

    A. Shrikumar, P. Greenside, A. Shcherbina, A. Kundaje: Not Just a Black Box: Learning Important
    Features Through Propagating Activation Differences, 2016 (arXiv:1605.01713), section 2.
    """

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps from one run of the model."""
        output, gradient = inputs.gradient_at(inputs.image)
        attribution = widen(inputs.image.detach()) * gradient
        return CamResult(attribution.sum(1).abs(), output, attribution=attribution)
