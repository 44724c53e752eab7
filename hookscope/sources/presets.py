"""The preprocessing presets of torchvision's weights as image recipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchvision.transforms import functional as F

from hookscope.errors import InputError
from hookscope.sources.loaded import Recipe, Size

if TYPE_CHECKING:
    from PIL.Image import Image

Numbers = Sequence[float] | None
_FLOW_STEP, _FLOW_MIN = 8, 128  # the sides that RAFT's pyramid supports


def preset_recipe(
    entry: Any, size: Size | None = None, mean: Numbers = None, std: Numbers = None
) -> Recipe:
    """Return the recipe of the weights ``entry``; the other arguments override its own values.

    ``size`` is the height and width of the model's input. A recipe that crops still crops, from an
    image resized in proportion; any other resizes to exactly ``size``.
    """
    preset = entry.transforms()
    name = type(preset).__name__
    build = _BUILDERS.get(name)
    if build is None:
        return Recipe(preset, f"{entry!r}: {name}", None)
    run, text = build(preset, _pair(size), mean, std)
    return Recipe(run, f"{entry!r}: {text}", lambda *values: preset_recipe(entry, *values))


def _pair(size: Size | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, int) else size


def _image(
    preset: Any, size: Any, mean: Numbers, std: Numbers
) -> tuple[Callable[[Image], Tensor], str]:
    _normalise(preset, mean, std)
    if size:
        margin = preset.resize_size[0] / preset.crop_size[0]
        preset.resize_size = [round(max(size) * margin)]
        preset.crop_size = list(size)
    return preset, f"{_resized(preset)}, {_normalised(preset)}"


def _segmentation(
    preset: Any, size: Any, mean: Numbers, std: Numbers
) -> tuple[Callable[[Image], Tensor], str]:
    _normalise(preset, mean, std)
    if size:
        preset.resize_size = list(size)
    return preset, f"{_resized(preset)}, {_normalised(preset)}"


def _video(
    preset: Any, size: Any, mean: Numbers, std: Numbers
) -> tuple[Callable[[Image], Tensor], str]:
    _normalise(preset, mean, std)
    if size:
        factor = max(new / old for new, old in zip(size, preset.crop_size, strict=True))
        preset.resize_size = [round(side * factor) for side in preset.resize_size]
        preset.crop_size = list(size)

    def frame(image: Image) -> Tensor:
        clip: Tensor = preset(F.pil_to_tensor(image)[None])
        return clip[:, 0]

    return frame, f"each frame: {_resized(preset)}, {_normalised(preset)}"


def _detection(
    preset: Any, size: Any, mean: Numbers, std: Numbers
) -> tuple[Callable[[Image], Tensor], str]:
    _check_unchanged(mean, std, "A detector normalises images itself.")

    def scaled(image: Image) -> Tensor:
        tensor: Tensor = preset(F.resize(image, list(size), antialias=True) if size else image)
        return tensor

    return scaled, f"{f'resized to {_by(size)}' if size else 'own size'}, scaled to 0-1"


def _flow(
    preset: Any, size: Any, mean: Numbers, std: Numbers
) -> tuple[Callable[[Image], Tensor], str]:
    _check_unchanged(mean, std, "Optical flow models take values from -1 to 1.")
    if size and (any(side % _FLOW_STEP for side in size) or min(size) < _FLOW_MIN):
        raise InputError(
            f"Optical flow models do not take images of {_by(size)}.",
            f"Height and width must be multiples of {_FLOW_STEP} and at least {_FLOW_MIN}.",
        )

    def frame(image: Image) -> Tensor:
        nearest = [
            max(_FLOW_MIN, round(side / _FLOW_STEP) * _FLOW_STEP)
            for side in (image.height, image.width)
        ]
        sides = list(size or nearest)
        if sides != [image.height, image.width]:
            image = F.resize(image, sides, antialias=True)
        first, _ = preset(image, image)
        return torch.as_tensor(first)

    nearest_text = f"the nearest multiple of {_FLOW_STEP}, at least {_FLOW_MIN}"
    return frame, f"resized to {_by(size) if size else nearest_text}, scaled to -1..1"


_BUILDERS: dict[str, Callable[..., tuple[Callable[[Image], Tensor], str]]] = {
    "ImageClassification": _image,
    "SemanticSegmentation": _segmentation,
    "VideoClassification": _video,
    "ObjectDetection": _detection,
    "OpticalFlow": _flow,
}


def _normalise(preset: Any, mean: Numbers, std: Numbers) -> None:
    preset.mean = list(mean) if mean is not None else preset.mean
    preset.std = list(std) if std is not None else preset.std


def _normalised(preset: Any) -> str:
    return f"mean {_list(preset.mean)}, std {_list(preset.std)}"


def _resized(preset: Any) -> str:
    sides = preset.resize_size
    how = f"shorter side to {sides[0]}" if len(sides) == 1 else f"resized to {_by(sides)}"
    crop = getattr(preset, "crop_size", None)
    how += f" ({preset.interpolation.value})"
    return f"{how}, centre crop {_by(crop * 2 if len(crop) == 1 else crop)}" if crop else how


def _check_unchanged(mean: Numbers, std: Numbers, why: str) -> None:
    if mean is not None or std is not None:
        raise InputError("This model takes no --mean or --std.", why)


def _by(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def _list(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)
