"""From what was given as input to the call value that the model is run on."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.inputs import images, recipes
from hookscope.inputs.words import NO_IMAGE, expand, refuse_unused
from hookscope.sources.loaded import LoadedModel, Recipe, Size
from hookscope.tensors import as_call, walk

log = logging.getLogger("hookscope")

Numbers = Sequence[float] | None
Word = str | os.PathLike[str]


@dataclass(frozen=True)
class Batch:
    """What a model is run on.

    Attributes:
        value: a call value, on the CPU.
        sources: one plain dict for each file or tensor: ``word``, ``sha256`` (None for noise),
            ``shape`` and ``dtype`` of the tensor it became.
        note: one line that says what was made of it.
        recipe: how images became tensors; None where there were no image files.
        channels: of the images it was given, 3, or 1 for grey.
    """

    value: Any
    sources: tuple[dict[str, Any], ...]
    note: str
    recipe: Recipe | None = None
    channels: int = 3


def build(
    loaded: LoadedModel,
    words: Any = (),
    *,
    shape: tuple[int, ...] | None = None,
    preprocess: str | None = None,
    size: Size | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    seed: int = 0,
) -> Batch:
    """Return the batch that the model ``loaded`` is run on.

    Args:
        loaded: the model.
        words: nothing (noise, or the example the model's file offers), a word or several words
            that name images, or a tensor or call value, which passes through.
        shape: of the noise; with images, its last two lengths are the size they get, and the
            others are to be what the images make.
        preprocess: ``imagenet`` or ``none`` in place of the model's own recipe.
        size: height and width in pixels that the model is to see; one number for both.
        mean: for each channel, taken off values that run from 0 to 1.
        std: for each channel, what they are then divided by.
        seed: of the noise. The global random state is left as it was.

    Raises:
        InputError: a file, shape or choice cannot be used.

    Example:
        >>> from hookscope.sources.loading import wrap
        >>> build(wrap(torch.nn.Linear(4, 2)), shape=(1, 4)).value.shape
        torch.Size([1, 4])
    """
    choices = {"preprocess": preprocess, "size": size, "mean": mean, "std": std}
    if words is None or (isinstance(words, list | tuple) and not words):
        refuse_unused(choices, NO_IMAGE)
        return _noise(loaded, shape, seed)
    if isinstance(words, str | os.PathLike):
        words = [words]
    if _are_words(words):
        return _from_images(loaded, expand(words), shape, (preprocess, size, mean, std))
    refuse_unused(choices, "a tensor is taken as it is")
    if shape is not None:
        raise InputError("A tensor has its own shape.", "Leave out --shape.")
    return Batch(words, _tensors(words, "tensor", hashed=True), "input: as given")


def _are_words(value: Any) -> TypeGuard[Sequence[Word]]:
    return isinstance(value, list | tuple) and all(
        isinstance(item, str | os.PathLike) for item in value
    )


def _noise(loaded: LoadedModel, shape: tuple[int, ...] | None, seed: int) -> Batch:
    if shape is None and loaded.own_example is not None:
        value = loaded.example(seed)
        made = _tensors(value, loaded.example_word)
        return Batch(value, made, f"input: {loaded.example_text}, {_shapes(made)}")
    value = loaded.example(seed) if shape is None else loaded.layout.noise(shape, seed)
    made = _tensors(value, "noise")
    _warn_if_small(loaded, made)
    note = f"input: {loaded.layout.distribution} of {_shapes(made)} from seed {seed}"
    return Batch(value, made, note)


def _from_images(
    loaded: LoadedModel,
    files: Sequence[str],
    shape: tuple[int, ...] | None,
    choices: tuple[str | None, Size | None, Numbers, Numbers],
) -> Batch:
    preprocess, size, mean, std = choices
    if shape is not None:
        if size is not None or len(shape) < 2:
            raise InputError("With images, --shape and --size say the same.", "Give --size alone.")
        size = (shape[-2], shape[-1])
    expected = shape or _expected_shape(loaded)
    channels = _channels(loaded, expected)
    _check_choices(size, mean, std, channels)
    if preprocess == "imagenet" and channels == 1 and None in (mean, std):
        raise InputError(
            f"The recipe imagenet is for colour images, and {loaded.word} takes grey ones.",
            "Leave out --preprocess, or give --preprocess none.",
        )
    recipe = _recipe(loaded, expected, preprocess, size, mean, std)
    tensors, sources = [], []
    for file in files:
        data = images.read_bytes(file)
        tensor = recipe.run(images.decode(data, file, channels))
        tensors.append(tensor)
        digest = hashlib.sha256(data).hexdigest()
        sources.append({**_describe(tensor), "word": file, "sha256": digest})
    _warn_if_small(loaded, sources)
    value = loaded.arrange(tensors)
    if shape is not None:
        _demand_shape(value, shape, len(files))
    grey = "made grey, " if channels == 1 else ""
    return Batch(value, tuple(sources), f"input: {grey}{recipe.text}", recipe, channels)


def _demand_shape(value: Any, shape: tuple[int, ...], count: int) -> None:
    """Refuse a shape that is of the model's input and yet not the one that the images make."""
    for _, tensor in walk(as_call(value)):
        made: tuple[int, ...] = tuple(tensor.shape)
        if isinstance(value, list) and len(shape) > tensor.ndim:  # a detector's images
            made = (len(value), *made)
        if len(made) == len(shape) and made != shape:
            what, wanted = ("x".join(map(str, lengths)) for lengths in (made, shape))
            images = "image makes" if count == 1 else "images make"
            raise InputError(
                f"{count} {images} an input of {what}, and --shape says {wanted}.",
                "With images, --shape sets height and width alone; give --size instead.",
            )


def _recipe(
    loaded: LoadedModel,
    expected: tuple[int, ...] | None,
    preprocess: str | None,
    size: Size | None,
    mean: Numbers,
    std: Numbers,
) -> Recipe:
    """The recipe asked for, or the model's own, or plain values at the size the model expects."""
    changed = any(choice is not None for choice in (size, mean, std))
    if preprocess is not None:
        return recipes.named(preprocess, size, mean, std)
    if loaded.own_recipe is not None:
        if not changed:
            return loaded.own_recipe
        if loaded.own_recipe.tuned is None:
            raise InputError(
                f"The preprocessing of {loaded.word} is its own and cannot be changed.",
                "Leave out --size, --mean and --std, or choose --preprocess none or imagenet.",
            )
        return loaded.own_recipe.tuned(size, mean, std)
    if size is None and expected is not None and len(expected) in (3, 4):
        size = (expected[-2], expected[-1])
    recipe = recipes.named("none", size, mean, std)
    return replace(recipe, text=f"{recipe.text} (the model does not say)")


def _expected_shape(loaded: LoadedModel) -> tuple[int, ...] | None:
    """Shape of the first tensor the model takes, where that is known without the user."""
    if loaded.own_example is None:
        return loaded.shape
    args, kwargs = as_call(loaded.example(0))
    first = next((tensor for _, tensor in walk((args, kwargs))), None)
    return tuple(first.shape) if first is not None else None


def _channels(loaded: LoadedModel, expected: tuple[int, ...] | None) -> int:
    """How many channels an image gets: 1 for a model that takes one, else 3."""
    if loaded.task:
        return 3
    count = expected[-3] if expected is not None and len(expected) in (3, 4) else None
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


def _check_choices(size: Size | None, mean: Numbers, std: Numbers, channels: int) -> None:
    sides = (size,) if isinstance(size, int) else size or ()
    if any(side < 1 for side in sides):
        raise InputError(f"An image of size {size} has no pixels.", "Give positive lengths.")
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) not in (1, channels):
            raise InputError(
                f"--{name} has {len(values)} values for images of {recipes.channels(channels)}.",
                "Give one value, or one for each channel.",
            )
    if std is not None and 0 in std:
        raise InputError("--std divides, and one of its values is 0.", "Give non-zero values.")


def _tensors(value: Any, word: str, hashed: bool = False) -> tuple[dict[str, Any], ...]:
    tensors: Iterable[Tensor] = (tensor for _, tensor in walk(as_call(value)))
    return tuple(
        {**_describe(tensor), "word": word, "sha256": _hash(tensor) if hashed else None}
        for tensor in tensors
    )


def _shapes(sources: Iterable[dict[str, Any]]) -> str:
    return " and ".join(source["shape"] or "one number" for source in sources)


def _warn_if_small(loaded: LoadedModel, sources: Iterable[dict[str, Any]]) -> None:
    for shape in dict.fromkeys(source["shape"] for source in sources):
        if min(map(int, shape.split("x")[-2:])) < loaded.min_size:
            log.warning(
                "input: %s is made for images of %dx%d or larger, and gets %s",
                loaded.word,
                loaded.min_size,
                loaded.min_size,
                shape,
            )


def _describe(tensor: Tensor) -> dict[str, Any]:
    return {
        "shape": "x".join(map(str, tensor.shape)),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }


def _hash(tensor: Tensor) -> str | None:
    """Hash of a tensor's bytes; None for one that has no plain ones (sparse, on meta)."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).hexdigest()
