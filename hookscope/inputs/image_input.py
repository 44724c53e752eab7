"""Image files as the input of a model, by its own recipe or the requested one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.files.words import plural, shape_text
from hookscope.inputs.image_decoder import decode_image
from hookscope.inputs.image_recipes import black_and_white, named_recipe
from hookscope.inputs.input_reader import Batch, ReadContext, read_bytes, sha256, tensor_entry
from hookscope.results.metadata import InputMetadata
from hookscope.sources.loaded import LoadedModel, Recipe, Size
from hookscope.specs.input_spec import InputSpec
from hookscope.tensors.nested import as_call, walk

log = logging.getLogger("hookscope")

Shape = tuple[int, ...]


def read_images(context: ReadContext, specs: Sequence[InputSpec]) -> Batch:
    """Read image files to a call value of the model."""
    channels, recipe = resolve_recipe(context)
    tensors: list[Tensor] = []
    sources: list[InputMetadata] = []
    levels: InputMetadata = {}
    for spec in specs:
        data = read_bytes(spec.path)
        tensor = recipe.run(decode_image(data, spec.path, channels))
        if not tensors:
            levels = _levels(recipe, tensor)
        tensors.append(tensor)
        sources.append({**tensor_entry(tensor, spec.text, sha256(data)), **levels})
    warn_if_small(context.loaded, sources)
    value = context.loaded.arrange(tensors)
    if context.shape is not None:
        _check_shape(value, context.shape, len(specs))
    grey = "converted to grey, " if channels == 1 else ""
    return Batch(value, tuple(sources), f"{grey}{recipe.text}", recipe)


def _levels(recipe: Recipe, tensor: Tensor) -> InputMetadata:
    """The values of black and white, for the metadata; not for a function of the user's file."""
    levels = black_and_white(recipe, tuple(tensor.shape)) if recipe.tuned else None
    if levels is None:
        return {}
    black, white = ([round(x, 6) for x in level.flatten().tolist()] for level in levels)
    return {"black": black, "white": white}


def resolve_recipe(context: ReadContext) -> tuple[int, Recipe]:
    """Return the number of channels of an image, and the recipe that makes it a tensor."""
    loaded, size = context.loaded, context.size
    if context.shape is not None:
        if size is not None or len(context.shape) < 2:
            raise InputError(
                "With images, use either --shape or --size, not both.", "Leave out --shape."
            )
        size = (context.shape[-2], context.shape[-1])
    expected = context.shape or expected_shape(loaded)
    channels = _channels(loaded, expected)
    context = replace(context, size=size)
    _check_options(context, channels)
    if context.preprocess == "imagenet" and channels == 1 and None in (context.mean, context.std):
        raise InputError(
            f"--preprocess imagenet is for colour images, but {loaded.spec} takes grey ones.",
            "Leave out --preprocess, or use --preprocess none.",
        )
    return channels, _recipe(context, expected)


def _check_shape(value: Any, shape: Shape, count: int) -> None:
    """Reject a shape of as many dimensions as the image batch but of other lengths."""
    for _, tensor in walk(as_call(value)):
        actual: Shape = tuple(tensor.shape)
        if isinstance(value, list) and len(shape) > tensor.ndim:  # a detector's images
            actual = (len(value), *actual)
        if len(actual) == len(shape) and actual != shape:
            actual_text, wanted = map(shape_text, (actual, shape))
            images = "image gives" if count == 1 else "images give"
            raise InputError(
                f"{count} {images} an input of {actual_text}, but --shape is {wanted}.",
                "With images, --shape only sets height and width; use --size instead.",
            )


def _recipe(context: ReadContext, expected: Shape | None) -> Recipe:
    """The requested recipe, else the model's own, else ``none`` at the size the model expects."""
    loaded, size, mean, std = context.loaded, context.size, context.mean, context.std
    changed = any(option is not None for option in (size, mean, std))
    if context.preprocess is not None:
        return named_recipe(context.preprocess, size, mean, std)
    if loaded.own_recipe is not None:
        if not changed:
            return loaded.own_recipe
        if loaded.own_recipe.tuned is None:
            raise InputError(
                f"The preprocessing of {loaded.spec} cannot be changed.",
                "Leave out --size, --mean and --std, or use --preprocess none or imagenet.",
            )
        return loaded.own_recipe.tuned(size, mean, std)
    if size is None and expected is not None and len(expected) in (3, 4, 5):
        size = (expected[-2], expected[-1])
    recipe = named_recipe("none", size, mean, std)
    declared = "no preprocessing" if size else "neither a size nor preprocessing"
    return replace(recipe, text=f"{recipe.text} (the model declares {declared})")


def expected_shape(loaded: LoadedModel) -> Shape | None:
    """Return the shape of the model's first input tensor; None if it is not known."""
    if loaded.own_example is None:
        return loaded.shape
    args, kwargs = as_call(loaded.example(0))
    first = next((tensor for _, tensor in walk((args, kwargs))), None)
    return tuple(first.shape) if first is not None else None


def _channels(loaded: LoadedModel, expected: Shape | None) -> int:
    """The number of channels of an image: 1 for a model that takes one channel, else 3."""
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
            f"{loaded.spec} takes {count} channels, but an image has 3, or 1 if grey.",
            "Leave out --input, or define preprocess(image) in the model's file.",
        )
    return 1 if count == 1 else 3


def _check_options(context: ReadContext, channels: int) -> None:
    size: Size | None = context.size
    sides = (size,) if isinstance(size, int) else size or ()
    if any(side < 1 for side in sides):
        raise InputError(f"The image size {size} is not valid.", "Give positive numbers.")
    for name, values in (("mean", context.mean), ("std", context.std)):
        if values is not None and len(values) not in (1, channels):
            raise InputError(
                f"--{name} has {len(values)} values for images of {plural(channels, 'channel')}.",
                "Give one value, or one for each channel.",
            )
    if context.std is not None and 0 in context.std:
        raise InputError(
            "--std contains a 0, and pixels are divided by it.", "Give non-zero values."
        )


def warn_if_small(loaded: LoadedModel, sources: Sequence[InputMetadata]) -> None:
    """Warn if images are smaller than the minimum size of the model."""
    for shape in dict.fromkeys(source["shape"] for source in sources):
        sides = filter(str.isdecimal, shape.split("x")[-2:])  # a scalar has none
        if any(int(side) < loaded.min_size for side in sides):
            log.warning(
                "input: %s expects images of at least %dx%d, but gets %s",
                loaded.spec,
                loaded.min_size,
                loaded.min_size,
                shape,
            )
