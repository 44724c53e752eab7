"""The image that integrated gradients begin at, and that occlusion puts in place of a patch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.inputs.image_recipes import black_and_white
from hookscope.model_analysis.cams.cam_input import CamInput


def baseline_name(baseline: Any) -> str:
    """Return the name of a baseline for metadata.

    Example:
        >>> baseline_name(None), baseline_name("black"), baseline_name(torch.zeros(1))
        ('zero', 'black', 'given')
    """
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
