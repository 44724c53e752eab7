"""The input of a method of ``cam``: a model with its images and scores; and what a method is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.prepare import Prepared
from hookscope.files.progress_types import Progress
from hookscope.files.words import shape_text
from hookscope.hooks.layers import Layer
from hookscope.inputs.image_recipes import black_and_white
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.model_analysis.cams.score_gradients import gradient_at_image, run_on_image
from hookscope.model_analysis.cams.scores import Score
from hookscope.results.records import Coverage
from hookscope.sources.loaded import Recipe
from hookscope.tensors.nested import TensorPath, as_call, walk

KINDS = {4: "image", 5: "volume", 3: "signal"}  # by the number of dimensions; in this order
UPSAMPLING = {1: "linear", 2: "bilinear", 3: "trilinear"}  # by the number of sides
STRETCHED = "the values scaled to their range"


class CamInput:
    """A model with its images, and the score of a class that is explained.

    The images are (N, C, H, W), volumes (N, C, D, H, W) or signals (N, C, L). If ``layer_given``,
    the first layer of ``prepared`` is the one that the user named.
    """

    def __init__(
        self,
        prepared: Prepared,
        score: Score,
        *,
        layer_given: bool,
        progress: Progress | None = None,
    ) -> None:
        self.prepared = prepared
        self.score = score
        self.layer: Layer | None = prepared.layers[0] if layer_given else None
        self.path, self.image = find_image(prepared, boxes=score.of_object)
        self.progress = progress
        score.check_input(prepared, self.image)

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width of the images, or all sides of the volumes, or the signals' length."""
        return tuple(self.image.shape[2:])

    @property
    def kind(self) -> str:
        """What the model's input is: ``image``, ``volume`` or ``signal``."""
        return KINDS[self.image.ndim]

    def at_input(self, maps: Tensor, *, nearest: bool = False) -> Tensor:
        """Return maps (N, *grid) at the size of the images, without what a detector pads."""
        size, inside = self.score.view_size(self.prepared, self.image)
        maps = resized(maps, size, nearest=nearest)
        if size == inside == self.size:
            return maps
        height, width = inside
        return resized(maps[:, :height, :width], self.size, nearest=nearest)

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


def resized(maps: Tensor, size: tuple[int, ...], *, nearest: bool = False) -> Tensor:
    """Return maps (N, *grid) of this size, linear along each side (centres aligned) or nearest."""
    if nearest:
        return F.interpolate(maps.unsqueeze(1), size, mode="nearest").squeeze(1)
    how = UPSAMPLING[len(size)]
    return F.interpolate(maps.unsqueeze(1), size, mode=how, align_corners=False).squeeze(1)


def find_image(prepared: Prepared, *, boxes: bool = False) -> tuple[TensorPath, Tensor]:
    """Return the path of the images in ``as_call`` of the model's input, and them, (N, C, ...).

    A detector takes a list of images (C, H, W): with ``boxes`` the only one of it is returned.
    """
    task = prepared.loaded.task
    if task == "optical flow" or (task == "detection" and not boxes):
        raise RequestError(
            f"{prepared.loaded.spec} is a model for {task}: its output has no class scores for the"
            " image.",
            "cam needs a classifier or a segmentation model; for a detector, --box 0 explains the"
            " score of an object."
            if task == "detection"
            else "cam needs a classifier or a segmentation model.",
        )
    tensors = list(walk(as_call(prepared.value)))
    if boxes and len(tensors) == 1 and len(tensors[0][0]) > 2 and tensors[0][1].ndim == 3:
        path, image = tensors[0]  # in a list, so the path goes on behind the argument
        return path, image.unsqueeze(0)
    for ndim in KINDS:
        for path, tensor in tensors:
            if tensor.ndim == ndim and tensor.is_floating_point():
                return path, tensor
    shapes = " and ".join(shape_text(tensor.shape, "one number") for _, tensor in tensors)
    raise RequestError(
        "The model takes no images (N, C, H, W), volumes (N, C, D, H, W) or signals (N, C, L): its"
        f" input is {shapes or 'no tensor'}.",
        "cam needs a floating-point input of three to five dimensions.",
    )


def displayable_image(image: Tensor, recipe: Recipe | None) -> tuple[Tensor, str]:
    """Return the model's input to look at, and how it was computed.

    Images and volumes become pixels, uint8 (N, 3, *size): preprocessing that scales and shifts is
    inverted; other values are scaled to their range. Signals stay as they are.
    """
    image = image.detach().cpu()
    if image.ndim == 3:
        return image, "as the model receives it"
    image = image.float()
    bounds = black_and_white(recipe, tuple(image.shape[1:])) if recipe is not None else None
    if bounds is not None:
        low, high = bounds
        values, origin = (image - low) / (high - low), "the preprocessing undone"
    else:
        image = image if image.shape[1] in (1, 3) else image.mean(1, keepdim=True)
        every = tuple(range(1, image.ndim))
        low, high = image.amin(every, keepdim=True), image.amax(every, keepdim=True)
        values, origin = (image - low) / torch.where(high > low, high - low, 1.0), STRETCHED
    pixels = (values * 255).round().clamp(0, 255).nan_to_num().to(torch.uint8)
    return pixels.expand(-1, 3, *image.shape[2:]).contiguous(), origin


@dataclass
class CamResult:
    """The maps (N, *grid) of a method, never negative: on a layer's grid, or at the image's size.

    Methods at the image have an ``attribution`` of the shape of the images, and no ``candidate``.
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
