"""The input of a method of ``cam``: a model with its images and scores; and what a method is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.prepare import Prepared
from hookscope.files.progress_types import Progress
from hookscope.hooks.layers import Layer
from hookscope.inputs.image_recipes import black_and_white
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.model_analysis.cams.score_gradients import (
    ClassScore,
    gradient_at_image,
    run_on_image,
)
from hookscope.results.records import Coverage
from hookscope.sources.loaded import Recipe
from hookscope.tensors.nested import TensorPath, as_call, walk

STRETCHED = "the values scaled to their range"


class CamInput:
    """A model with its images (N, C, H, W), and the score of a class that is explained.

    If ``layer_given``, the first layer of ``prepared`` is the one that the user named.
    """

    def __init__(
        self,
        prepared: Prepared,
        score: ClassScore,
        *,
        layer_given: bool,
        progress: Progress | None = None,
    ) -> None:
        self.prepared = prepared
        self.score = score
        self.layer: Layer | None = prepared.layers[0] if layer_given else None
        self.path, self.image = find_image(prepared)
        self.progress = progress

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.image.shape[2], self.image.shape[3]

    def run(self, image: Tensor) -> Any:
        """Return the model's output for other images, from a run without autograd."""
        return run_on_image(self.prepared, self.path, image)

    def gradient_at(self, image: Tensor) -> tuple[Any, Tensor]:
        """Return the model's output for other images, and the score's gradient at them."""
        output, gradient = gradient_at_image(self.prepared, self.score, self.path, image)
        return output, widen(gradient)


def widen(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, in float32 or wider. The maps take little work there."""
    return tensor.cpu().to(torch.promote_types(tensor.dtype, torch.float32))


def find_image(prepared: Prepared) -> tuple[TensorPath, Tensor]:
    """Return the path of the images in ``as_call`` of the model's input, and them, (N, C, H, W)."""
    task = prepared.loaded.task
    if task in ("detection", "optical flow"):
        raise RequestError(
            f"{prepared.loaded.spec} is a model for {task}: its output has no class scores for the"
            " image.",
            "cam needs a classifier or a segmentation model.",
        )
    tensors = list(walk(as_call(prepared.value)))
    for path, tensor in tensors:
        if tensor.ndim == 4 and tensor.is_floating_point():
            return path, tensor
    shapes = " and ".join("x".join(map(str, tensor.shape)) for _, tensor in tensors)
    raise RequestError(
        f"The model takes no images (N, C, H, W): its input is {shapes or 'no tensor'}.",
        "cam needs a floating-point input of four dimensions.",
    )


def displayable_image(image: Tensor, recipe: Recipe | None) -> tuple[Tensor, str]:
    """Return the model's images as pixels, uint8 (N, 3, H, W), and how they were computed.

    Preprocessing that scales and shifts is inverted; other values are scaled to their range.
    """
    image = image.detach().cpu().float()
    bounds = black_and_white(recipe, tuple(image.shape[1:])) if recipe is not None else None
    if bounds is not None:
        low, high = bounds
        values, origin = (image - low) / (high - low), "the preprocessing undone"
    else:
        image = image if image.shape[1] in (1, 3) else image.mean(1, keepdim=True)
        low, high = image.amin((1, 2, 3), keepdim=True), image.amax((1, 2, 3), keepdim=True)
        values, origin = (image - low) / torch.where(high > low, high - low, 1.0), STRETCHED
    pixels = (values * 255).round().clamp(0, 255).nan_to_num().to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1).contiguous(), origin


@dataclass
class CamResult:
    """The maps (N, h, w) of a method, never negative: on a layer's grid, or at the image's size.

    Methods at the image have an ``attribution``, (N, C, H, W), and no ``candidate``.
    """

    maps: Tensor
    output: Any
    coverage: Coverage = field(default_factory=Coverage)
    candidate: LayerCandidate | None = None
    attribution: Tensor | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class CamAlgorithm(ABC):
    """A method that explains the score of a class by a map over each image."""

    @abstractmethod
    def attribute(self, inputs: CamInput) -> CamResult:
        """Run the model as often as the method needs, and return the maps.

        Raises:
            RequestError: the model has no layer or score that the method could use.
            LossError, ForwardError, CheckFailed: as for ``grads``.
        """
