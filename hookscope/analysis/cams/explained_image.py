"""The image that goes into a model: which tensor it is, and how to show it as it was seen."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.prepare import Prepared
from hookscope.inputs.image_recipes import black_and_white
from hookscope.sources.loaded import Recipe
from hookscope.tensors.nested import TensorPath, as_call, walk

STRETCHED = "its values stretched from the least to the largest"


def find_image(prepared: Prepared) -> tuple[TensorPath, Tensor]:
    """Return the images that the model is called with, (N, C, H, W), and where they stand.

    The path begins with 0 for positional and 1 for keyword arguments.

    Raises:
        RequestError: the model takes none.
    """
    task = prepared.loaded.task
    if task in ("detection", "optical flow"):
        raise RequestError(
            f"{prepared.loaded.word} is a model for {task}, whose output has no score of a class"
            " for the image.",
            "cam explains classifiers and segmentations.",
        )
    tensors = list(walk(as_call(prepared.value)))
    for path, tensor in tensors:
        if tensor.ndim == 4 and tensor.is_floating_point():
            return path, tensor
    shapes = " and ".join("x".join(map(str, tensor.shape)) for _, tensor in tensors)
    raise RequestError(
        f"The model takes no images (N, C, H, W): its input is {shapes or 'no tensor'}.",
        "cam draws its map over an image.",
    )


def displayable_image(image: Tensor, recipe: Recipe | None) -> tuple[Tensor, str]:
    """Return images as they look to the model, uint8 (N, 3, H, W), and how that was found.

    Preprocessing that scales and shifts each channel is undone: what it makes of black and of white
    tells how. Otherwise the values are stretched; other numbers of channels than 1 and 3 become
    grey, their mean.

    Args:
        image: what the model gets, float (N, C, H, W).
        recipe: how it was made of a file; None where it was not.
    """
    image = image.detach().cpu().float()
    bounds = black_and_white(recipe, tuple(image.shape[1:])) if recipe is not None else None
    if bounds is not None:
        low, high = bounds
        values, told = (image - low) / (high - low), "the preprocessing undone"
    else:
        image = image if image.shape[1] in (1, 3) else image.mean(1, keepdim=True)
        low, high = image.amin((1, 2, 3), keepdim=True), image.amax((1, 2, 3), keepdim=True)
        values, told = (image - low) / torch.where(high > low, high - low, 1.0), STRETCHED
    shown = (values * 255).round().clamp(0, 255).nan_to_num().to(torch.uint8)
    return shown.expand(-1, 3, -1, -1).contiguous(), told
