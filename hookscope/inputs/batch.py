"""From an input spec, or the objects given as input, to the batch a model is called with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeGuard

from hookscope.errors import InputError
from hookscope.inputs.audio_input import read_audio
from hookscope.inputs.call_arguments import assemble_call
from hookscope.inputs.csv_input import read_csv
from hookscope.inputs.image_input import read_images, warn_if_small
from hookscope.inputs.input_checks import check_input, check_noise_shape
from hookscope.inputs.input_reader import (
    Batch,
    OpenTensor,
    ReadContext,
    format_shapes,
    read_joined,
    single_argument,
    tensor_entry,
    tensor_sha256,
)
from hookscope.inputs.json_input import read_json_input
from hookscope.inputs.python_input import read_python
from hookscope.inputs.tensor_input import (
    generate_tensor,
    read_numpy,
    read_safetensors,
    read_torch,
)
from hookscope.inputs.text_input import read_texts
from hookscope.inputs.video_input import read_video
from hookscope.results.metadata import InputMetadata
from hookscope.sources.loaded import LoadedModel, Numbers, Size, seeded_generator
from hookscope.specs import input_spec
from hookscope.specs.input_spec import (
    NO_IMAGE,
    InputSpec,
    may_hold_images,
    parse_inputs,
    reject_image_options,
)
from hookscope.tensors.nested import as_call, walk

# Readers that use a recipe of the model: they read all specs of one argument together.
_RECIPE_READERS: dict[str, Callable[[ReadContext, Sequence[InputSpec]], Batch]] = {
    input_spec.IMAGE: read_images,
    input_spec.VIDEO: read_video,
    input_spec.AUDIO: read_audio,
    input_spec.TEXT: read_texts,
}
# Readers of tensors: they read one spec each. JSON is added by ``_tensor_reader``.
_TENSOR_READERS: dict[str, OpenTensor] = {
    input_spec.NUMPY: read_numpy,
    input_spec.SAFETENSORS: read_safetensors,
    input_spec.TORCH: read_torch,
    input_spec.TABLE: read_csv,
    input_spec.GENERATED: generate_tensor,
    input_spec.PYTHON: read_python,
}


def build_batch(
    loaded: LoadedModel,
    specs: Any = (),
    *,
    shape: tuple[int, ...] | None = None,
    preprocess: str | None = None,
    size: Size | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    seed: int = 0,
    chat: bool = False,
) -> Batch:
    """Return the batch that the model ``loaded`` is called with."""
    if specs is None or (isinstance(specs, list | tuple) and not specs):
        return _noise(loaded, shape, seed)
    if isinstance(specs, str | os.PathLike):
        specs = [specs]
    if _are_specs(specs):
        generator = seeded_generator(seed)
        context = ReadContext(loaded, shape, preprocess, size, mean, std, seed, chat, generator)
        return _read_batch(context, parse_inputs(specs))
    choices = {"preprocess": preprocess, "size": size, "mean": mean, "std": std}
    reject_image_options(choices, "a tensor is used unchanged")
    if shape is not None:
        raise InputError("The input is a tensor, which has a shape already.", "Leave out --shape.")
    return Batch(specs, _entries(specs, "tensor", hashed=True), "input: as given")


def _are_specs(value: Any) -> TypeGuard[Sequence[str | os.PathLike[str]]]:
    return isinstance(value, list | tuple) and all(
        isinstance(item, str | os.PathLike) for item in value
    )


def _noise(loaded: LoadedModel, shape: tuple[int, ...] | None, seed: int) -> Batch:
    """The example that the model's file offers, or noise of the shape."""
    if shape is None and loaded.own_example is not None:
        value = loaded.example(seed)
        entries = _entries(value, loaded.example_spec)
        return Batch(value, entries, f"input: {loaded.example_text}, {format_shapes(entries)}")
    if shape is not None:
        check_noise_shape(loaded, shape)
    value = loaded.example(seed) if shape is None else loaded.layout.make_noise(shape, seed)
    entries = _entries(value, "noise")
    warn_if_small(loaded, entries)
    note = f"input: {loaded.layout.distribution} of {format_shapes(entries)} from seed {seed}"
    return Batch(value, entries, note)


def _read_batch(context: ReadContext, specs: Sequence[InputSpec]) -> Batch:
    """Read all specs and put their values together to one call of the model."""
    if not may_hold_images(specs):
        choices = {name: getattr(context, name) for name in input_spec.IMAGE_OPTIONS}
        reject_image_options(choices, NO_IMAGE)
        if context.shape is not None:
            raise InputError("The input has a shape already.", "Leave out --shape.")
    places = dict.fromkeys(spec.place for spec in specs)
    results = [
        (place, _read_argument(context, [spec for spec in specs if spec.place == place]))
        for place in places
    ]
    if len(results) == 1 and results[0][0] is None and specs[0].kind in _RECIPE_READERS:
        value = results[0][1].value  # the recipe has arranged it to a call value
    else:
        value = assemble_call(context.loaded, results)
    if any(spec.kind not in _RECIPE_READERS for spec in specs):
        check_input(context.loaded, value)
    note = f"input: {'; '.join(result.note for _, result in results)}"
    recipe = next((result.recipe for _, result in results if result.recipe), None)
    sources = tuple(entry for _, result in results for entry in result.sources)
    return Batch(value, sources, note, recipe)


def _read_argument(context: ReadContext, specs: Sequence[InputSpec]) -> Batch:
    """Read the specs for one argument, or those that name no argument."""
    kinds = [kind for kind, _ in groupby(specs, key=lambda spec: spec.kind)]
    if not any(kind in _RECIPE_READERS for kind in kinds):
        return read_joined(context, specs, _tensor_reader)
    if len(kinds) > 1:
        raise InputError(
            f"{specs[0].text} and the other inputs differ in kind: {' and '.join(kinds)}.",
            "Assign each to an argument: --input NAME=FILE or --input 0=FILE.",
        )
    result = _RECIPE_READERS[kinds[0]](context, specs)
    if specs[0].place is None:
        return result
    value = single_argument(result.value)
    if value is None:
        raise InputError(
            f"{specs[0].text} gives several arguments, but {specs[0].place!r} is only one.",
            "Leave out the name: the model's preprocessing names the arguments.",
        )
    return replace(result, value=value)


def _tensor_reader(kind: str) -> OpenTensor:
    if kind == input_spec.JSON:  # which names files of the other kinds
        return partial(read_json_input, reader_of=_tensor_reader)
    return _TENSOR_READERS[kind]


def _entries(value: Any, spec: str, hashed: bool = False) -> tuple[InputMetadata, ...]:
    """One entry for each tensor of a call value; see ``Batch.sources``."""
    tensors = [tensor for _, tensor in walk(as_call(value))]
    return tuple(tensor_entry(t, spec, tensor_sha256(t) if hashed else None) for t in tensors)
