"""From a prepared model to a map: the runs that each method needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hookscope.analysis.cams import formulas
from hookscope.analysis.cams.class_score import ClassScore
from hookscope.analysis.cams.explained_image import find_image
from hookscope.analysis.cams.guided_backprop import guide_relus
from hookscope.analysis.cams.layer_scan import LayerCandidate
from hookscope.analysis.cams.score_gradients import (
    clone_at_layer,
    gradient_at_image,
    observe_layer,
    run_on_image,
)
from hookscope.errors import RequestError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.prepare import Prepared
from hookscope.inputs.image_recipes import black_and_white
from hookscope.results.records import Coverage, ExecutedModule
from hookscope.specs.cam_methods import AT_INPUT, AT_LAYER, METHODS, STEPS

log = logging.getLogger("hookscope")

Progress = Callable[[int, int], None]


@dataclass
class CamResult:
    """What came of a method.

    Attributes:
        maps: (N, h, w), never negative: at the layer's grid, or the image's size.
        output: the model's output for the images as given.
        coverage: how often the layer ran.
        spot: the layer's output that was used; None for methods at the image.
        attribution: the values that a map at the image is made from, (N, C, H, W).
        told: what the metadata say besides.
    """

    maps: Tensor
    output: Any
    coverage: Coverage = field(default_factory=Coverage)
    spot: LayerCandidate | None = None
    attribution: Tensor | None = None
    told: dict[str, Any] = field(default_factory=dict)


class CamRun:
    """One request: a model with its images, a score, and a method by its name.

    Args:
        prepared: the model; its layers are the one asked for, or all of them.
        score: what is explained.
        method: one of ``METHODS``.
        progress: called with the number of runs made and that of all, where there are many.
    """

    def __init__(
        self, prepared: Prepared, score: ClassScore, method: str, progress: Progress | None = None
    ) -> None:
        self.prepared = prepared
        self.score = score
        self.method = METHODS[method]
        self.path, self.image = find_image(prepared)
        self._advance = progress or (lambda done, total: None)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.image.shape[2], self.image.shape[3]

    def run(self, named: bool, steps: int | None, baseline: Any) -> CamResult:
        """Run the method; ``named`` tells that the layer was asked for.

        Raises:
            RequestError: the model has no images, layers or scores that the method could use.
            LossError, ForwardError, CheckFailed: as for ``grads``.
        """
        with explain_forward_errors(self.prepared):
            if self.method.name == "integrated":
                return self._integrated(steps or STEPS, baseline)
            if self.method.source == AT_INPUT:
                return self._at_input()
            return self._at_layer(named)

    def _at_layer(self, named: bool) -> CamResult:
        layer = self.prepared.layers[0] if named else None
        differentiate = self.method.source == AT_LAYER
        run = observe_layer(
            self.prepared, self.score, self.path, self.image, layer, gradient=differentiate
        ) or clone_at_layer(self.prepared, self.score, self.image, layer, gradient=differentiate)
        spot = run.spot
        if layer is None:
            why = " that the score needs" if spot.needed else ""
            log.info("layer: %s, the last on a grid%s", spot.layer.name, why)
        activations = _maps(spot, spot.value)
        if differentiate:
            gradients = _maps(spot, spot.gradient)
            found = formulas.OF_GRADIENTS[self.method.name](activations, gradients)
        elif self.method.name == "eigencam":
            found = formulas.eigencam(activations)
        else:
            found = self._score_weighted(activations)
        executed = ExecutedModule(spot.layer.name, spot.layer.type, run.calls)
        return CamResult(found, run.output, Coverage((executed,)), spot)

    def _score_weighted(self, activations: Tensor) -> Tensor:
        """Score-CAM: a run for every channel, each of the same shape as the images."""
        scores, count = [], activations.shape[1]
        for channel in range(count):
            mask = formulas.mask(activations[:, channel], self.size).to(self.image)
            masked = self.image * mask.expand_as(self.image)
            scores.append(self.score.each(run_on_image(self.prepared, self.path, masked)))
            self._advance(channel + 1, count)
        weights = torch.stack(scores, 1).softmax(1)
        return formulas.weighted(activations, weights.to(activations))

    def _at_input(self) -> CamResult:
        told: dict[str, Any] = {}
        if self.method.name == "guided":
            with guide_relus(self.prepared.module) as told:
                output, gradient = self._gradient_at(self.image)
        else:
            output, gradient = self._gradient_at(self.image)
        found = formulas.strongest(gradient)
        return CamResult(found, output, attribution=gradient, told=told)

    def _integrated(self, steps: int, baseline: Any) -> CamResult:
        """(x - b) times the mean gradient on the way from b to x, and how complete that is."""
        output = run_on_image(self.prepared, self.path, self.image)
        self.score.of(self.prepared, output)  # the class is that of the image as given
        start = self._baseline(baseline)
        way = self.image - start
        total = torch.zeros(self.image.shape, dtype=torch.float64)
        for number, (place, weight) in enumerate(formulas.nodes(steps)):
            _, gradient = self._gradient_at(start + place * way)
            total += weight * gradient.double()
            self._advance(number + 1, steps)
        attribution = total * way.cpu().double()
        before = self.score.each(run_on_image(self.prepared, self.path, start)).double()
        after = self.score.each(output).double()
        gaps = attribution.flatten(1).sum(1) - (after - before)
        named = baseline if isinstance(baseline, str) else "zero" if baseline is None else "given"
        told = {"steps": steps, "baseline": named, "gap": gaps.tolist(), "from": before.tolist()}
        attribution = attribution.to(_wide(self.image))
        return CamResult(attribution.sum(1).abs(), output, attribution=attribution, told=told)

    def _baseline(self, baseline: Any) -> Tensor:
        if baseline is None or (isinstance(baseline, str) and baseline == "zero"):
            return torch.zeros_like(self.image)
        if isinstance(baseline, Tensor):
            try:
                return baseline.to(self.image).expand_as(self.image).clone()
            except RuntimeError as error:
                shapes = ["x".join(map(str, t.shape)) for t in (baseline, self.image)]
                raise RequestError(
                    f"A baseline of shape {shapes[0]} does not fit images of {shapes[1]}.",
                    "Give one that broadcasts to them.",
                ) from error
        recipe = self.prepared.recipe
        bounds = black_and_white(recipe, tuple(self.image.shape[1:])) if recipe else None
        if bounds is None:
            raise RequestError(
                f"What a {baseline} image is to this model is not known: its input was not made"
                " from an image file, or by more than scaling and shifting each channel.",
                "Give --input an image file, or --baseline zero.",
            )
        color = bounds[0 if baseline == "black" else 1]
        return color.to(self.image).expand_as(self.image).clone()

    def _gradient_at(self, image: Tensor) -> tuple[Any, Tensor]:
        output, gradient = gradient_at_image(self.prepared, self.score, self.path, image)
        return output, _wide(gradient)


def _maps(spot: LayerCandidate, tensor: Tensor | None) -> Tensor:
    assert spot.grid is not None
    if tensor is None:
        raise RequestError(
            f"The score has no gradient at what the layer {spot.layer.name} ({spot.layer.type})"
            " returns.",
            "Choose another --layer or --target, or a method without gradients, such as eigencam.",
        )
    return spot.grid.maps(_wide(tensor))


def _wide(tensor: Tensor) -> Tensor:
    """On the CPU, in float32 or wider: what follows is little work, and wants float64."""
    return tensor.cpu().to(torch.promote_types(tensor.dtype, torch.float32))
