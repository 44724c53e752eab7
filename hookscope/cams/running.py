"""From a prepared model to a map: the runs that each method needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.cams import formulas
from hookscope.cams.guiding import guided
from hookscope.cams.scoring import Score
from hookscope.cams.seen import find_image, with_image
from hookscope.cams.spatial import Grid
from hookscope.cams.survey import Spot, Survey, choose, last_on_grid
from hookscope.cams.words import AT_INPUT, AT_LAYER, METHODS, STEPS, VALUES
from hookscope.captures import Capture
from hookscope.errors import RequestError
from hookscope.execute import backward, demand_unchanged, forward, run_bare, untouched
from hookscope.hooks import what_of
from hookscope.inputs.levels import black_and_white
from hookscope.kinds import INPUT, OUTPUT, OUTPUT_GRAD
from hookscope.losses.compute import class_scores
from hookscope.prepare import Prepared
from hookscope.runs import run_backward, run_forward
from hookscope.tensors import map_tensors

log = logging.getLogger("hookscope")

Progress = Callable[[int, int], None]


@dataclass
class Explained:
    """What came of a method.

    Attributes:
        maps: (N, h, w), never negative: at the layer's grid, or the image's size.
        output: the model's output for the images as given.
        capture: the recording that it was made from.
        spot: the layer's output that was used; None for methods at the image.
        attribution: the values that a map at the image is made from, (N, C, H, W).
        told: what the metadata say besides.
    """

    maps: Tensor
    output: Any
    capture: Capture
    spot: Spot | None = None
    attribution: Tensor | None = None
    told: dict[str, Any] = field(default_factory=dict)


class Explanation:
    """One request: a model with its images, a score, and a method by its name.

    Args:
        prepared: the model; its layers are the one asked for, or all of them.
        score: what is explained.
        method: one of ``METHODS``.
        progress: called with the number of runs made and that of all, where there are many.
    """

    def __init__(
        self, prepared: Prepared, score: Score, method: str, progress: Progress | None = None
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

    def run(self, named: bool, steps: int | None, baseline: Any) -> Explained:
        """Run the method; ``named`` tells that the layer was asked for.

        Raises:
            RequestError: the model has no images, layers or scores that the method could use.
            LossError, ForwardError, CheckFailed: as for ``grads``.
        """
        if self.method.source == AT_INPUT:
            return self._at_input(steps, baseline)
        spot = self._survey(named)
        prepared = replace(self.prepared, layers=(spot.layer,))
        assert spot.grid is not None
        if self.method.source == VALUES:
            run = run_forward(prepared, {OUTPUT})
            activations = _maps(run.capture, spot.key, spot.grid)
            if self.method.name == "eigencam":
                found = formulas.eigencam(activations)
            else:
                found = self._score_weighted(activations)
        else:
            run = run_backward(prepared, {OUTPUT, OUTPUT_GRAD}, self.score.measure)
            self._demand_unchanged(run.capture.output)
            activations = _maps(run.capture, spot.key, spot.grid)
            gradients = _maps(run.capture, f"{spot.key}.grad", spot.grid)
            found = formulas.OF_GRADIENTS[self.method.name](activations, gradients)
        return Explained(found, run.capture.output, run.capture, spot)

    def _survey(self, named: bool) -> Spot:
        """Run once, settle the target, and find the layer's output to use."""
        prepared = self.prepared
        module = prepared.module
        survey = Survey(module, len(self.image), self.size)
        guard = untouched(module, train=prepared.train, seed=prepared.seed)
        with guard, torch.inference_mode(False), torch.enable_grad(), survey:
            call = map_tensors(prepared.fresh_call(), _requiring_grad)
            output = forward(prepared, call=call)
            loss = self.score.of(prepared, output)
            if named:
                return last_on_grid(survey.spots, prepared.layers[0])
            if loss.value.requires_grad:
                backward(prepared, loss.value, Capture())
            needed = self.method.source == AT_LAYER
            spot = choose(survey.spots, class_scores(output), needed=needed)
        why = " that the score needs" if spot.needed else ""
        log.info("layer: %s, the last on a grid%s", spot.layer.name, why)
        return spot

    def _score_weighted(self, activations: Tensor) -> Tensor:
        """Score-CAM: a run for every channel, each of the same shape as the images."""
        scores, count = [], activations.shape[1]
        for channel in range(count):
            mask = formulas.mask(activations[:, channel], self.size).to(self.image)
            scores.append(self.score.each(self._run_on(self.image * mask.expand_as(self.image))))
            self._advance(channel + 1, count)
        weights = torch.stack(scores, 1).softmax(1)
        return formulas.weighted(activations, weights.to(activations))

    def _at_input(self, steps: int | None, baseline: Any) -> Explained:
        if self.method.name == "guided":
            with guided(self.prepared.module):
                capture, gradient = self._gradient_at(self.image)
        else:
            capture, gradient = self._gradient_at(self.image)
        self._demand_unchanged(capture.output)
        found = partial(Explained, output=capture.output, capture=capture)
        if self.method.name != "integrated":
            return found(formulas.strongest(gradient), attribution=gradient)
        attribution, told = self._integrate(steps or STEPS, baseline, capture.output)
        return found(attribution.sum(1).abs(), attribution=attribution, told=told)

    def _integrate(self, steps: int, baseline: Any, output: Any) -> tuple[Tensor, dict[str, Any]]:
        """(x - b) times the mean gradient on the way from b to x, and how complete that is."""
        start = self._baseline(baseline)
        way = self.image - start
        total = torch.zeros(self.image.shape, dtype=torch.float64)
        for number, (place, weight) in enumerate(formulas.nodes(steps)):
            _, gradient = self._gradient_at(start + place * way)
            total += weight * gradient.double()
            self._advance(number + 1, steps)
        attribution = total * way.cpu().double()
        before = self.score.each(self._run_on(start)).double()
        after = self.score.each(output).double()
        gaps = attribution.flatten(1).sum(1) - (after - before)
        named = baseline if isinstance(baseline, str) else "zero" if baseline is None else "given"
        told = {"steps": steps, "baseline": named, "gap": gaps.tolist(), "from": before.tolist()}
        return attribution.to(_wide(self.image)), told

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

    def _gradient_at(self, image: Tensor) -> tuple[Capture, Tensor]:
        """The gradient of the score at ``image``, float32 or wider, and the run's recording."""
        value = with_image(self.prepared, self.path, image)
        prepared = replace(self.prepared, layers=(), value=value)
        capture = run_backward(prepared, (), self.score.measure).capture
        key = f"./{what_of(INPUT, self.path)}.grad"
        if key not in capture:
            reason = next((x.reason for x in capture.absent if f"./{x.what}" == key), "none came")
            raise RequestError(
                f"The score has no gradient at the image: {reason}.",
                "Choose a method that needs none, eigencam or scorecam.",
            )
        return capture, _wide(capture[key])

    def _run_on(self, image: Tensor) -> Any:
        value = with_image(self.prepared, self.path, image)
        with torch.no_grad():
            return run_bare(replace(self.prepared, value=value))

    def _demand_unchanged(self, output: Any) -> None:
        with torch.enable_grad():
            demand_unchanged(self.prepared, output, excuse_noise=True)


def _maps(capture: Capture, key: str, grid: Grid) -> Tensor:
    if key not in capture:
        what = key.partition("/")[2]
        reason = next((one.reason for one in capture.absent if one.what == what), "none came")
        raise RequestError(
            f"There is no {key}: {reason}.",
            "Choose another --layer or --target, or a method without gradients, such as eigencam.",
        )
    return grid.maps(_wide(capture[key]))


def _wide(tensor: Tensor) -> Tensor:
    """On the CPU, in float32 or wider: what follows is little work, and wants float64."""
    return tensor.cpu().to(torch.promote_types(tensor.dtype, torch.float32))


def _requiring_grad(path: Any, tensor: Tensor) -> Tensor:
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor
