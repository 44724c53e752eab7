"""Methods of ``cam`` that map the input itself: saliency, guided backprop, occlusion and others.

``attribute`` shares the path integral and the occlusion.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookscope.errors import RequestError
from hookscope.files.progress_types import Progress
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.words import shape_text
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.op_recorder import plain_name
from hookscope.hooks.torch_state import FunctionMode
from hookscope.inputs.image_recipes import black_and_white
from hookscope.model_analysis.cams.cam_input import CamAlgorithm, CamInput, CamResult, widen
from hookscope.specs.cam_methods import PATCHES, STEPS

_RELU = "relu"
_OTHERS = (
    *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish"),
    *("prelu", "relu6", "rrelu", "selu", "sigmoid", "silu", "softplus", "tanh"),
)


def integrate_gradient(
    gradient_at: Callable[[Tensor], Tensor],
    start: Tensor,
    end: Tensor,
    steps: int,
    progress: Progress | None = None,
) -> Tensor:
    """Return (x - b) times the mean gradient from the baseline b to the input x, in float64."""
    difference = end - start
    total = torch.zeros(end.shape, dtype=torch.float64)
    for number, (position, weight) in enumerate(quadrature_points(steps)):
        gradient = gradient_at(start + position * difference)
        total += weight * gradient.detach().cpu().double()
        if progress is not None:
            progress(number + 1, steps)
    return total * difference.cpu().double()


def quadrature_points(steps: int) -> list[tuple[float, float]]:
    """Return Gauss-Legendre points in 0..1, each with its weight."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return [(float(x + 1) / 2, float(w) / 2) for x, w in zip(nodes, weights, strict=True)]


def occlusion_drops(
    score_of: Callable[[Tensor], Tensor],
    values: Tensor,
    baseline: Tensor,
    regions: Sequence[tuple[slice | int, ...]],
    progress: Progress | None = None,
) -> Iterator[Tensor]:
    """Yield the score of the input less that with one region of it from the baseline."""
    whole = score_of(values).detach().cpu().double()
    for number, region in enumerate(regions):
        occluded = values.detach().clone()
        occluded[region] = baseline[region]
        yield whole - score_of(occluded).detach().cpu().double()
        if progress is not None:
            progress(number + 1, len(regions))


def baseline_name(baseline: Any) -> str:
    """Return the name of a baseline for metadata."""
    if isinstance(baseline, str):
        return baseline
    return "zero" if baseline is None else "given"


def baseline_image(inputs: CamInput, baseline: Any) -> Tensor:
    """Return the baseline in the shape of the images."""
    image = inputs.image
    if baseline is None or (isinstance(baseline, str) and baseline == "zero"):
        return torch.zeros_like(image)
    if isinstance(baseline, Tensor):
        try:
            return baseline.to(image).expand_as(image).clone()
        except RuntimeError as error:
            shapes = [shape_text(t.shape) for t in (baseline, image)]
            raise RequestError(
                f"A baseline of shape {shapes[0]} does not fit images of shape {shapes[1]}.",
                "Give one whose shape broadcasts to the shape of the images.",
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


class Saliency(CamAlgorithm):
    """Saliency map: ``saliency`` in ``METHODS``, section 3.1 of the paper."""

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps from one run of the model."""
        output, gradient = inputs.gradient_at(inputs.image)
        return CamResult(gradient.abs().amax(1), output, attribution=gradient)


class GuidedBackprop(CamAlgorithm):
    """Guided backpropagation: ``guided`` in ``METHODS``, section 3.4 of the paper.

    For the gradient G at its output, a ReLU passes back relu(G) where its input was positive, and 0
    elsewhere.
    """

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps from one run of the model."""
        with guide_relus(inputs.prepared.module) as metadata:
            output, gradient = inputs.gradient_at(inputs.image)
        return CamResult(gradient.abs().amax(1), output, attribution=gradient, metadata=metadata)


class _ActivationMode(TorchFunctionMode):
    """Guides every ReLU: a module, a function, or an operator of a scripted or exported model.

    ``ran`` counts the calls of activation functions, ``passed`` those that a gradient came to.
    """

    def __init__(self, hooks: HookSet) -> None:
        super().__init__()
        self.ran: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self._hooks = hooks

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the mode is off in here
        result = func(*args, **(kwargs or {}))
        name = plain_name(func).rstrip("_")
        if (name == _RELU or name in _OTHERS) and isinstance(result, Tensor):
            self.ran[name] += 1
            if result.requires_grad:
                # At the ReLU's output. The ReLU itself then sets the gradient to 0 where its
                # input was not positive.
                self._hooks.listen(result, partial(self._guide, name))
        return result

    def _guide(self, name: str, grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        self.passed[name] += 1
        return grad.clamp(min=0) if name == _RELU else None


@signal_safe_contextmanager
def guide_relus(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Pass only positive gradients back through the ReLUs that run within the block.

    The parameters must be frozen, so that gradients go from the score to the image only.
    """
    metadata: dict[str, Any] = {}
    with HookSet(model) as hooks:
        activations = _ActivationMode(hooks)
        with FunctionMode(activations):
            yield metadata
    passed = activations.passed
    others = {name: passed[name] for name in sorted(passed) if name != _RELU}
    metadata.update(relus=passed[_RELU], unguided=others)
    if metadata["relus"]:
        return
    ran = activations.ran[_RELU]
    why = "No ReLU ran in this model"
    if ran:
        why = f"No ReLU is between the image and the score ({ran} elsewhere)"
    names = ", ".join(f"{name} {count}" for name, count in others.items())
    raise RequestError(
        f"{why}{f', only other activations: {names}' if names else ''}.",
        "Guided backpropagation changes only ReLUs, so here it is the plain gradient. Use --by"
        " saliency for that, or --by integrated.",
    )


class GradientTimesInput(CamAlgorithm):
    """Gradient times input: ``gradxinput`` in ``METHODS``, section 2 of the paper."""

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps from one run of the model."""
        output, gradient = inputs.gradient_at(inputs.image)
        attribution = widen(inputs.image.detach()) * gradient
        return CamResult(attribution.sum(1).abs(), output, attribution=attribution)


class IntegratedGradients(CamAlgorithm):
    """Integrated gradients: ``integrated`` in ``METHODS``.

    By the completeness axiom the attribution adds up to the difference of the scores of the image
    and the baseline. The deviation from it is ``gap`` in the metadata.
    """

    def __init__(self, steps: int | None = None, baseline: Any = None) -> None:
        self.steps = steps or STEPS
        self.baseline = baseline

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps, the attribution, and how far it is from completeness."""
        score, image = inputs.score, inputs.image
        output = inputs.run(image)
        score.value(inputs.prepared, output)
        start = baseline_image(inputs, self.baseline)
        attribution = integrate_gradient(
            lambda at: inputs.gradient_at(at)[1], start, image, self.steps, inputs.progress
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


class Occlusion(CamAlgorithm):
    """Occlusion: ``occlusion`` in ``METHODS``, section 4.2 of the paper. One run for each patch.

    The patches are squares (cubes, spans) side by side; those at the far edges may be cut off.
    """

    def __init__(self, patch: int | None = None, baseline: Any = None) -> None:
        self.patch = patch
        self.baseline = baseline

    def attribute(self, inputs: CamInput) -> CamResult:
        """Return the maps, and the signed change of the score as the attribution."""
        score, image, sides = inputs.score, inputs.image, self._sides(inputs)
        output = inputs.run(image)
        score.value(inputs.prepared, output)
        start = baseline_image(inputs, self.baseline)
        every = slice(None)
        starts = (range(0, whole, side) for whole, side in zip(inputs.size, sides, strict=True))
        regions = [
            (every, every, *(slice(at, at + side) for at, side in zip(corner, sides, strict=True)))
            for corner in itertools.product(*starts)
        ]
        attribution = torch.zeros(image.shape, dtype=torch.float64)
        drops = occlusion_drops(
            lambda values: score.each(inputs.run(values)),
            *(image, start, regions, inputs.progress),
        )
        for region, drop in zip(regions, drops, strict=True):
            attribution[region] = drop.reshape(-1, *[1] * (image.ndim - 1))
        patch = sides[0] if len(set(sides)) == 1 else list(sides)
        metadata = {"patch": patch, "baseline": baseline_name(self.baseline)}
        attribution = attribution.to(widen(image))
        return CamResult(
            attribution[:, 0].relu(), output, attribution=attribution, metadata=metadata
        )

    def _sides(self, inputs: CamInput) -> tuple[int, ...]:
        """The sides of a patch; that of a volume divides every side by 8."""
        if self.patch is None and inputs.kind == "volume":
            return tuple(max(1, side // PATCHES) for side in inputs.size)
        shortest = min(inputs.size)
        side = self.patch or max(1, shortest // PATCHES)
        if side > shortest:
            size = shape_text(inputs.size)
            raise RequestError(
                f"A patch of {side} is larger than the {inputs.kind}, which is {size}.",
                f"Give a --patch of at most {shortest}.",
            )
        return (side,) * len(inputs.size)
