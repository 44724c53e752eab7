"""Integrated gradients: the mean gradient between a baseline and the image."""

from __future__ import annotations

from typing import Any

from hookscope.model_analysis.cams.baseline_image import baseline_image, baseline_name
from hookscope.model_analysis.cams.cam_input import CamInput, widen
from hookscope.model_analysis.cams.cam_method import CamMethod, CamResult
from hookscope.model_analysis.path_integral import integrate_gradient
from hookscope.specs.cam_methods import STEPS


class IntegratedGradients(CamMethod):
    """Integrated gradients.

    The attribution of entry i of the image x is (x_i - b_i) times the integral over t from 0 to 1
    of the gradient of the target's score at b + t (x - b), where b is the baseline. The map is the
    absolute sum over the image's channels. By the completeness axiom the attribution adds up to
    the difference of the scores of x and b. The deviation from it is ``gap`` in the metadata.

    M. Sundararajan, A. Taly, Q. Yan: Axiomatic Attribution for Deep Networks, 2017
    (arXiv:1703.01365).

    Args:
        steps: number of points of the quadrature, with one run of the model each; None for 50.
        baseline: ``zero``, ``black`` or ``white``, or a tensor that broadcasts to the images; None
            for ``zero``.
    """

    def __init__(self, steps: int | None = None, baseline: Any = None) -> None:
        self.steps = steps or STEPS
        self.baseline = baseline

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps, the attribution, and how far it is from completeness."""
        score, image = inputs.score, inputs.image
        output = inputs.run(image)
        score.loss(inputs.prepared, output)  # the class is that of the image as given
        start = baseline_image(inputs, self.baseline)
        attribution = integrate_gradient(
            lambda at: inputs.gradient_at(at)[1], start, image, self.steps, inputs.report_progress
        )
        before = score.each(inputs.run(start)).double()
        after = score.each(output).double()
        gaps = attribution.flatten(1).sum(1) - (after - before)
        metadata = {
            "steps": self.steps,
            "baseline": baseline_name(self.baseline),
            "gap": gaps.tolist(),
            "from": before.tolist(),
        }
        attribution = attribution.to(widen(image))
        return CamResult(
            attribution.sum(1).abs(), output, attribution=attribution, metadata=metadata
        )
