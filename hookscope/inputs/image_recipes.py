"""The image recipes ``imagenet`` and ``none``, which need no torchvision; black and white."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hookscope.errors import InputError
from hookscope.files.words import plural, shape_text
from hookscope.sources.loaded import Numbers, Recipe, Size, sides_of

NAMES = ("imagenet", "none")

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SHORTER, _CROP = 256, 224


def named_recipe(
    name: str, size: Size | None = None, mean: Numbers = None, std: Numbers = None
) -> Recipe:
    """Return the recipe called ``name``; the other arguments override its own values."""
    if name == "imagenet":
        return _imagenet(size, mean, std)
    if name == "none":
        return _none(size, mean, std)
    raise InputError(f"There is no preprocessing called {name!r}.", f"Use {' or '.join(NAMES)}.")


def _imagenet(size: Size | None, mean: Numbers, std: Numbers) -> Recipe:
    mean, std = _MEAN if mean is None else mean, _STD if std is None else std
    height, width = sides_of(size or _CROP)
    shorter = round(max(height, width) * _SHORTER / _CROP)

    def run(image: Image.Image) -> Tensor:
        short, long = sorted(image.size)
        longer = int(shorter * long / short)
        wide = image.width > image.height
        image = image.resize(
            (longer, shorter) if wide else (shorter, longer), Image.Resampling.BILINEAR
        )
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        image = image.crop((left, top, left + width, top + height))
        return _normalised(to_tensor(image), mean, std)

    text = f"imagenet: shorter side to {shorter}, centre crop {height}x{width}"
    return Recipe(run, f"{text}, {_text(mean, std)}", _imagenet)


def _none(size: Size | None, mean: Numbers, std: Numbers) -> Recipe:
    def run(image: Image.Image) -> Tensor:
        if size:
            height, width = sides_of(size)
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BILINEAR)
        return _normalised(to_tensor(image), mean, std)

    sides = shape_text(sides_of(size)) if size else ""
    resized = f"resized to {sides}, aspect ratio not kept" if size else "own size"
    text = f"{resized}, scaled to 0-1"
    changes = f", {_text(mean, std)}" if mean is not None or std is not None else ""
    return Recipe(run, text + changes, _none)


def to_tensor(image: Image.Image) -> Tensor:
    """Return an 8-bit RGB or grey image as float32 of shape C, H, W with values from 0 to 1."""
    pixels = torch.from_numpy(np.array(image))
    pixels = pixels.unsqueeze(-1) if pixels.ndim == 2 else pixels
    return pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


def _normalised(tensor: Tensor, mean: Numbers, std: Numbers) -> Tensor:
    return tensor.sub_(_per_channel(tensor, mean, 0.0)).div_(_per_channel(tensor, std, 1.0))


def _per_channel(tensor: Tensor, values: Numbers, default: float) -> Tensor:
    values = values or [default]
    if len(values) not in (1, len(tensor)):
        raise InputError(
            f"{len(values)} values of mean or std do not fit an image of"
            f" {plural(len(tensor), 'channel')}.",
            "Give --mean and --std with one value for each channel.",
        )
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def _text(mean: Numbers, std: Numbers) -> str:
    mean_text, std_text = (
        " ".join(f"{value:g}" for value in values or (default,))
        for values, default in ((mean, 0), (std, 1))
    )
    return f"mean {mean_text}, std {std_text}"


def black_and_white(recipe: Recipe, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """Return black and white in a recipe's tensors, (C, 1, 1) each; None if it is not affine."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        return None
    channels, height, width = shape
    mode, values = ("RGB" if channels == 3 else "L"), []
    for level in (0, 255, 51):
        color = (level,) * channels if channels == 3 else level
        try:
            tensor = recipe.run(Image.new(mode, (width, height), color)).float()
        except Exception:  # the user's function may not accept this image
            return None
        value = tensor.flatten(1).mean(1)[:, None, None]
        uniform = torch.allclose(tensor, value.expand_as(tensor), atol=1e-5)
        if tensor.shape[0] != channels or not uniform:
            return None
        values.append(value)
    black, white, grey = values
    affine = torch.allclose(grey, black + (white - black) / 5, atol=1e-4)
    return (black, white) if affine and bool((black != white).all()) else None
