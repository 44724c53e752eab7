"""From what was given as input to the call value that the model is run on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from typing import Any, TypeGuard, cast

from hookscope.errors import InputError
from hookscope.inputs.call_arguments import assemble_call
from hookscope.inputs.image_input import warn_if_small
from hookscope.inputs.input_checks import check_input
from hookscope.inputs.input_reader import (
    Numbers,
    ReadContext,
    ReadResult,
    format_shapes,
    read_joined,
    single_argument,
    tensor_entry,
    tensor_sha256,
)
from hookscope.sources.layouts import seeded_generator
from hookscope.sources.loaded import LoadedModel, Recipe, Size
from hookscope.specs import input_spec as kinds
from hookscope.specs.input_spec import (
    NO_IMAGE,
    InputSpec,
    may_hold_images,
    parse_inputs,
    reject_image_options,
)
from hookscope.tensors.nested import as_call, walk

Word = str | os.PathLike[str]

# Each of the first has read(asked, words) -> ReadResult; each of the others read_python(asked, word), which
# gives a value and the hash of its file. A reader is imported only when its kind is named.
_BY_RECIPE = {
    kinds.IMAGE: "image_input:read_images",
    kinds.VIDEO: "video_input:read_video",
    kinds.AUDIO: "audio_input:read_audio",
    kinds.TEXT: "text_input:read_texts",
}
_TENSORS = {
    kinds.NUMPY: "tensor_input:read_numpy",
    kinds.SAFETENSORS: "tensor_input:read_safetensors",
    kinds.TORCH: "tensor_input:read_torch",
    kinds.TABLE: "csv_input:read_csv",
    kinds.JSON: "json_input:read_json_input",
    kinds.GENERATED: "tensor_input:generate_tensor",
    kinds.PYTHON: "python_input:read_python",
}


@dataclass(frozen=True)
class Batch:
    """What a model is run on.

    Attributes:
        value: a call value, on the CPU.
        sources: one plain dict for each file or tensor: ``word``, ``sha256`` (of the file, or of
            the values where there is none; None for noise), ``shape`` and ``dtype`` of the tensor
            it became, and the ``part`` it is where a word became several; of an image also
            ``black`` and ``white``, what these become in each channel, where the recipe is that
            simple.
        note: one line that says what was made of it.
        recipe: how images became tensors; None where there were no image files.
    """

    value: Any
    sources: tuple[dict[str, Any], ...]
    note: str
    recipe: Recipe | None = None


def build_batch(
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
            as docs/inputs.md has them, or a tensor or call value, which passes through.
        shape: of the noise; with images, its last two lengths are the size they get, and the
            others are to be what the images make.
        preprocess: ``imagenet`` or ``none`` in place of the model's own recipe.
        size: height and width in pixels that the model is to see; one number for both.
        mean: for each channel, taken off values that run from 0 to 1.
        std: for each channel, what they are then divided by.
        seed: of the noise. The global random state is left as it was.

    Raises:
        InputError: a file, shape or choice cannot be used.
        EnvironmentFault: a reader needs a package that is not installed.

    Example:
        >>> import torch
        >>> from hookscope.sources.model_loader import wrap
        >>> build(wrap(torch.nn.Linear(4, 2)), shape=(1, 4)).value.shape
        torch.Size([1, 4])
        >>> build(wrap(torch.nn.Linear(4, 2)), "ones:3x4").value.shape
        torch.Size([3, 4])
    """
    choices = {"preprocess": preprocess, "size": size, "mean": mean, "std": std}
    if words is None or (isinstance(words, list | tuple) and not words):
        reject_image_options(choices, NO_IMAGE)
        return _noise(loaded, shape, seed)
    if isinstance(words, str | os.PathLike):
        words = [words]
    if _are_words(words):
        asked = ReadContext(
            loaded, shape, preprocess, size, mean, std, seed, seeded_generator(seed)
        )
        return _from_words(asked, parse_inputs(words))
    reject_image_options(choices, "a tensor is taken as it is")
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
        return Batch(value, made, f"input: {loaded.example_text}, {format_shapes(made)}")
    value = loaded.example(seed) if shape is None else loaded.layout.noise(shape, seed)
    made = _tensors(value, "noise")
    warn_if_small(loaded, made)
    note = f"input: {loaded.layout.distribution} of {format_shapes(made)} from seed {seed}"
    return Batch(value, made, note)


def _from_words(asked: ReadContext, words: Sequence[InputSpec]) -> Batch:
    if not may_hold_images(words):
        choices = {name: getattr(asked, name) for name in kinds.IMAGE_OPTIONS}
        reject_image_options(choices, NO_IMAGE)
        if asked.shape is not None:
            raise InputError("What is given as input has its own shape.", "Leave out --shape.")
    places = dict.fromkeys(word.place for word in words)
    pieces = [
        (place, _read(asked, [word for word in words if word.place == place])) for place in places
    ]
    if len(pieces) == 1 and pieces[0][0] is None and words[0].kind in _BY_RECIPE:
        value = pieces[0][1].value  # arranged as the model's source says
    else:
        value = assemble_call(asked.loaded, pieces)
    if any(word.kind in _TENSORS for word in words):
        check_input(asked.loaded, value)
    note = f"input: {'; '.join(piece.note for _, piece in pieces)}"
    recipe = next((piece.recipe for _, piece in pieces if piece.recipe), None)
    sources = tuple(entry for _, piece in pieces for entry in piece.sources)
    return Batch(value, sources, note, recipe)


def _read(asked: ReadContext, words: Sequence[InputSpec]) -> ReadResult:
    """Read the words for one place."""
    found = [kind for kind, _ in groupby(words, key=lambda word: word.kind)]
    if all(kind in _TENSORS for kind in found):
        return read_joined(asked, words, _opener)
    if len(found) > 1:
        raise InputError(
            f"{words[0].word} and others with it are {' and '.join(found)}, and make no batch.",
            "Say which argument each is for: --input NAME=FILE or --input 0=FILE.",
        )
    module, _, function = _BY_RECIPE[found[0]].partition(":")
    read = getattr(import_module(f"hookscope.inputs.{module}"), function)
    piece = cast(ReadResult, read(asked, words))
    if words[0].place is None:
        return piece
    return _for_one_argument(piece, words[0])


def _opener(kind: str) -> Callable[[ReadContext, InputSpec], tuple[Any, str | None]]:
    module, _, function = _TENSORS[kind].partition(":")
    open_one = getattr(import_module(f"hookscope.inputs.{module}"), function)
    if kind == kinds.JSON:
        open_one = partial(open_one, open_kind=_opener)
    return cast("Callable[[ReadContext, InputSpec], tuple[Any, str | None]]", open_one)


def _for_one_argument(piece: ReadResult, word: InputSpec) -> ReadResult:
    alone = single_argument(piece.value)
    if alone is None:
        raise InputError(
            f"{word.word} becomes several arguments, and {word.place!r} is one.",
            "Leave out the name: the model's own recipe says which is which.",
        )
    return ReadResult(alone, piece.sources, piece.note, piece.recipe)


def _tensors(value: Any, word: str, hashed: bool = False) -> tuple[dict[str, Any], ...]:
    found = [tensor for _, tensor in walk(as_call(value))]
    return tuple(tensor_entry(t, word, tensor_sha256(t) if hashed else None) for t in found)
