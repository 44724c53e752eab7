"""From image files to the model's input, by its own recipe or the one that was asked for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.inputs import image_decoder, image_recipes
from hookscope.inputs.image_recipes import black_and_white
from hookscope.inputs.input_reader import ReadContext, ReadResult, read_bytes, sha256, tensor_entry
from hookscope.sources.loaded import LoadedModel, Recipe, Size
from hookscope.specs.input_spec import InputSpec
from hookscope.tensors.nested import as_call, walk

log = logging.getLogger("hookscope")

Shape = tuple[int, ...]


def read_images(asked: ReadContext, words: Sequence[InputSpec]) -> ReadResult:
    """Read image files to a call value of the model.

    Raises:
        InputError: a file is no image or damaged, or a choice does not fit.
    """
    channels, recipe = resolve_recipe(asked)
    tensors: list[Tensor] = []
    sources: list[dict[str, Any]] = []
    levels: dict[str, list[float]] = {}
    for word in words:
        data = read_bytes(word.path)
        tensor = recipe.run(image_decoder.decode_image(data, word.path, channels))
        if not tensors:
            levels = _levels(recipe, tensor)
        tensors.append(tensor)
        sources.append({**tensor_entry(tensor, word.word, sha256(data)), **levels})
    warn_if_small(asked.loaded, sources)
    value = asked.loaded.arrange(tensors)
    if asked.shape is not None:
        _check_shape(value, asked.shape, len(words))
    grey = "made grey, " if channels == 1 else ""
    return ReadResult(value, tuple(sources), f"{grey}{recipe.text}", recipe)


def _levels(recipe: Recipe, tensor: Tensor) -> dict[str, list[float]]:
    """What black and white become; a function of the user's own is not run more than it need be."""
    ends = black_and_white(recipe, tuple(tensor.shape)) if recipe.tuned else None
    if ends is None:
        return {}
    rounded = ([round(level, 6) for level in end.flatten().tolist()] for end in ends)
    return dict(zip(("black", "white"), rounded, strict=True))


def resolve_recipe(asked: ReadContext) -> tuple[int, Recipe]:
    """Return how many channels an image gets, and how it becomes a tensor.

    Raises:
        InputError: a choice does not fit the model, or another choice.
    """
    loaded, size = asked.loaded, asked.size
    if asked.shape is not None:
        if size is not None or len(asked.shape) < 2:
            raise InputError("With images, --shape and --size say the same.", "Give --size alone.")
        size = (asked.shape[-2], asked.shape[-1])
    expected = asked.shape or expected_shape(loaded)
    channels = _channels(loaded, expected)
    asked = replace(asked, size=size)
    _check_choices(asked, channels)
    if asked.preprocess == "imagenet" and channels == 1 and None in (asked.mean, asked.std):
        raise InputError(
            f"The recipe imagenet is for colour images, and {loaded.word} takes grey ones.",
            "Leave out --preprocess, or give --preprocess none.",
        )
    return channels, _recipe(asked, expected)


def _check_shape(value: Any, shape: Shape, count: int) -> None:
    """Refuse a shape that is of the model's input and yet not the one that the images make."""
    for _, tensor in walk(as_call(value)):
        made: Shape = tuple(tensor.shape)
        if isinstance(value, list) and len(shape) > tensor.ndim:  # a detector's images
            made = (len(value), *made)
        if len(made) == len(shape) and made != shape:
            what, wanted = ("x".join(map(str, lengths)) for lengths in (made, shape))
            images = "image makes" if count == 1 else "images make"
            raise InputError(
                f"{count} {images} an input of {what}, and --shape says {wanted}.",
                "With images, --shape sets height and width alone; give --size instead.",
            )


def _recipe(asked: ReadContext, expected: Shape | None) -> Recipe:
    """The recipe asked for, or the model's own, or plain values at the size the model expects."""
    loaded, size, mean, std = asked.loaded, asked.size, asked.mean, asked.std
    changed = any(choice is not None for choice in (size, mean, std))
    if asked.preprocess is not None:
        return image_recipes.named_recipe(asked.preprocess, size, mean, std)
    if loaded.own_recipe is not None:
        if not changed:
            return loaded.own_recipe
        if loaded.own_recipe.tuned is None:
            raise InputError(
                f"The preprocessing of {loaded.word} is its own and cannot be changed.",
                "Leave out --size, --mean and --std, or choose --preprocess none or imagenet.",
            )
        return loaded.own_recipe.tuned(size, mean, std)
    if size is None and expected is not None and len(expected) in (3, 4, 5):
        size = (expected[-2], expected[-1])
    recipe = image_recipes.named_recipe("none", size, mean, std)
    return replace(recipe, text=f"{recipe.text} (the model does not say)")


def expected_shape(loaded: LoadedModel) -> Shape | None:
    """Shape of the first tensor the model takes, where that is known without the user."""
    if loaded.own_example is None:
        return loaded.shape
    args, kwargs = as_call(loaded.example(0))
    first = next((tensor for _, tensor in walk((args, kwargs))), None)
    return tuple(first.shape) if first is not None else None


def _channels(loaded: LoadedModel, expected: Shape | None) -> int:
    """How many channels an image gets: 1 for a model that takes one, else 3."""
    if loaded.task:
        return 3
    count = expected[-3] if expected is not None and len(expected) in (3, 4) else None
    if expected is not None and len(expected) == 5:  # clips N, C, T, H, W
        count = expected[1]
    if count is None:
        convolutions = (m for m in loaded.module.modules() if isinstance(m, nn.Conv2d))
        first = next(convolutions, None)
        count = first.in_channels if first else 3
    if count not in (1, 3) and loaded.own_recipe is None:
        raise InputError(
            f"{loaded.word} takes {count} channels, and an image has 3, or 1 when grey.",
            "Leave out --input, or offer preprocess(image) in the model's file.",
        )
    return 1 if count == 1 else 3


def _check_choices(asked: ReadContext, channels: int) -> None:
    size: Size | None = asked.size
    sides = (size,) if isinstance(size, int) else size or ()
    if any(side < 1 for side in sides):
        raise InputError(f"An image of size {size} has no pixels.", "Give positive lengths.")
    for name, values in (("mean", asked.mean), ("std", asked.std)):
        if values is not None and len(values) not in (1, channels):
            raise InputError(
                f"--{name} has {len(values)} values for images of {image_recipes.format_channels(channels)}.",
                "Give one value, or one for each channel.",
            )
    if asked.std is not None and 0 in asked.std:
        raise InputError("--std divides, and one of its values is 0.", "Give non-zero values.")


def warn_if_small(loaded: LoadedModel, sources: Sequence[dict[str, Any]]) -> None:
    """Warn of images that are smaller than those the model is made for."""
    for shape in dict.fromkeys(source["shape"] for source in sources):
        if min(map(int, shape.split("x")[-2:])) < loaded.min_size:
            log.warning(
                "input: %s is made for images of %dx%d or larger, and gets %s",
                loaded.word,
                loaded.min_size,
                loaded.min_size,
                shape,
            )
