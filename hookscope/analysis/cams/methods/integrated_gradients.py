"""Integrated gradients: the mean gradient between a baseline and the image."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookscope.analysis.cams.cam_input import CamInput, widen
from hookscope.analysis.cams.cam_method import CamMethod, CamResult
from hookscope.errors import RequestError
from hookscope.inputs.image_recipes import black_and_white
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
        start = self._baseline_of(inputs)
        difference = image - start
        total = torch.zeros(image.shape, dtype=torch.float64)
        for number, (position, weight) in enumerate(quadrature_points(self.steps)):
            _, gradient = inputs.gradient_at(start + position * difference)
            total += weight * gradient.double()
            inputs.report_progress(number + 1, self.steps)
        attribution = total * difference.cpu().double()
        before = score.each(inputs.run(start)).double()
        after = score.each(output).double()
        gaps = attribution.flatten(1).sum(1) - (after - before)
        metadata = {
            "steps": self.steps,
            "baseline": self._baseline_name(),
            "gap": gaps.tolist(),
            "from": before.tolist(),
        }
        attribution = attribution.to(widen(image))
        return CamResult(
            attribution.sum(1).abs(), output, attribution=attribution, metadata=metadata
        )

    def _baseline_name(self) -> str:
        if isinstance(self.baseline, str):
            return self.baseline
        return "zero" if self.baseline is None else "given"

    def _baseline_of(self, inputs: CamInput) -> Tensor:
        """Return the baseline in the shape of the images."""
        baseline, image = self.baseline, inputs.image
        if baseline is None or (isinstance(baseline, str) and baseline == "zero"):
            return torch.zeros_like(image)
        if isinstance(baseline, Tensor):
            try:
                return baseline.to(image).expand_as(image).clone()
            except RuntimeError as error:
                shapes = ["x".join(map(str, t.shape)) for t in (baseline, image)]
                raise RequestError(
                    f"A baseline of shape {shapes[0]} does not fit images of shape {shapes[1]}.",
                    "Give one of a shape that broadcasts to that of the images.",
                ) from error
        recipe = inputs.prepared.recipe
        bounds = black_and_white(recipe, tuple(image.shape[1:])) if recipe else None
        if bounds is None:
            raise RequestError(
                f"Cannot tell what a {baseline} image is to this model: its input was not made from"
                " an image file, or its preprocessing does more than scale and shift each channel.",
                "Use an image file as --input, or --baseline zero.",
            )
        color = bounds[0 if baseline == "black" else 1]
        return color.to(image).expand_as(image).clone()


def quadrature_points(steps: int) -> list[tuple[float, float]]:
    """Return the positions in 0..1 at which an integral is sampled, each with its weight.

    Gauss-Legendre quadrature: exact for polynomials of degree 2 steps - 1.

    Example:
        >>> quadrature_points(1)
        [(0.5, 1.0)]
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return [(float(x + 1) / 2, float(w) / 2) for x, w in zip(nodes, weights, strict=True)]
