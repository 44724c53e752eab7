"""Tensors from files checked against their model: what cannot run before, the rest afterwards."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.files.words import shape_text
from hookscope.hooks.layers import own_parameters
from hookscope.sources.loaded import BATCH, LIST, LoadedModel
from hookscope.tensors.nested import as_call, walk
from hookscope.tensors.torch_internals import ConvNd

log = logging.getLogger("hookscope")

# Images that are normalised or scaled to 0-1 stay far below this value; images in bytes do not.
_MAX_NORMALISED = 20.0
_AS_FLOATS = "Save it as floating-point numbers: numpy.save(FILE, array.astype('float32'))."
_AS_IDS = "Use ints:SHAPE:0-{0}, or save integers: numpy.save(FILE, ids.astype('int64'))."


def check_noise_shape(loaded: LoadedModel, shape: tuple[int, ...]) -> None:
    """Check a shape of noise; warn if it seems to lack the batch dimension."""
    if loaded.own_example is not None:
        return
    if loaded.own_recipe is not None and loaded.shape is not None:
        meant = _probable_shape(shape, len(loaded.shape), loaded.shape[1])
        if meant and loaded.layout is not LIST:
            wanted, actual = shape_text(loaded.shape), shape_text(shape)
            raise InputError(
                f"{loaded.spec} takes shapes such as {wanted}, not {actual}.",
                f"Did you mean --shape {shape_text(meant)}? The first dimension is the batch.",
            )
        return
    modules = loaded.module.modules()
    first = next(filter(own_parameters, modules), None)
    # A model with one channel may add that dimension itself.
    if (
        isinstance(first, ConvNd)
        and len(shape) == len(first.kernel_size) + 1
        and shape[0] == first.in_channels > 1
    ):
        text = shape_text(shape)
        log.warning("input: %s has no batch dimension; did you mean --shape 1x%s?", text, text)


def _probable_shape(shape: tuple[int, ...], rank: int, channels: int) -> tuple[int, ...] | None:
    """The shape that was probably meant: with a batch, and with the channels in dimension 1."""
    if len(shape) == rank - 2 and channels not in shape:
        return (1, channels, *shape)
    if len(shape) == rank - 1 and shape[0] == channels:
        return (1, *shape)
    if len(shape) == rank - 1 and shape[-1] == channels:
        return (1, channels, *shape[:-1])
    if len(shape) == rank and shape[1] != channels == shape[-1]:
        return (shape[0], channels, *shape[1:-1])
    return None


def check_input(loaded: LoadedModel, value: Any) -> None:
    """Check an image batch, if the model's shape is known; warn if its values look unscaled."""
    args, kwargs = as_call(value)
    shape = loaded.shape
    if loaded.own_recipe is None or loaded.own_example is not None or shape is None:
        return
    first = next((tensor for _, tensor in walk((args, kwargs))), None)
    if first is None:
        return
    if loaded.layout is BATCH and len(args) == 1 and isinstance(args[0], Tensor):
        _check_images(loaded.spec, shape, first)
    if (
        first.is_floating_point()
        and first.numel()
        and first.min() >= 0
        and first.max() > _MAX_NORMALISED
    ):
        log.warning(
            "input: the values range from %g to %g, but %s expects other values: %s. Divide values"
            " of 0-255 by 255 and normalise them, or give the image file",
            first.min(),
            first.max(),
            loaded.spec,
            loaded.own_recipe.text,
        )


def _check_images(spec: str, shape: tuple[int, ...], images: Tensor) -> None:
    lengths, wanted = shape_text(images.shape), shape_text(shape)
    if not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.")
        raise InputError(
            f"{spec} takes floating-point numbers such as {wanted}, not {lengths} {kind}.",
            _AS_FLOATS,
        )
    hint = _shape_hint(tuple(images.shape), len(shape), shape[1])
    if hint:
        raise InputError(f"{spec} takes inputs such as {wanted}, not {lengths}.", hint)


def explain_layer_error(layer: nn.Module, tensors: list[Tensor]) -> str:
    """Return why a layer may have failed on the model's input, with a hint; empty if unknown."""
    weight = getattr(layer, "weight", None)
    if not tensors or not isinstance(weight, Tensor):
        return ""
    floats = [t for t in tensors if t.is_floating_point()]
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        integers = [t for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
        if floats and not integers:
            repair = _AS_IDS.format(layer.num_embeddings)
            return f"An embedding takes integers, but the input contains none. {repair}"
        most = max((int(t.max()) for t in integers if t.numel()), default=0)
        if most >= layer.num_embeddings:
            return (
                f"The embedding has {layer.num_embeddings} rows, but the input contains {most}."
                f" Give numbers from 0 to {layer.num_embeddings - 1}."
            )
        return ""
    if weight.is_floating_point() and not floats:
        return f"The layer takes floating-point numbers, but the input contains none. {_AS_FLOATS}"
    if isinstance(layer, ConvNd):
        rank = len(layer.kernel_size) + 2
        return _shape_hint(tuple(tensors[0].shape), rank, layer.in_channels)
    if isinstance(layer, nn.Linear):
        last = tensors[0].shape[-1] if tensors[0].ndim else 0
        if last != layer.in_features and layer.in_features in tensors[0].shape:
            return (
                f"The layer takes {layer.in_features} features in the last dimension, but the input"
                " has them in another. Transpose it."
            )
        if tensors[0].ndim == 2 and last == layer.in_features + 1:
            return (
                f"The layer takes {layer.in_features} features, but the input has one more. If this"
                " is a column of labels or row numbers, leave it out: --input FILE.csv:0-"
                f"{layer.in_features - 1}."
            )
    return ""


def _shape_hint(shape: tuple[int, ...], rank: int, channels: int) -> str:
    """Why a shape does not fit this rank and these channels, with a hint; empty if it does."""
    if len(shape) == rank - 1 and channels == shape[0]:
        return "The batch dimension is missing: array[None] adds it."
    if len(shape) == rank - 1 and channels == shape[-1]:
        order = ", ".join(map(str, (rank - 2, *range(rank - 2))))
        return (
            "The batch dimension is missing, and the channels come last: write"
            f" array.transpose({order})[None]."
        )
    if len(shape) != rank:
        return f"{rank} dimensions, got {len(shape)}."
    if shape[1] != channels and shape[-1] == channels:
        order = ", ".join(map(str, (0, rank - 1, *range(1, rank - 1))))
        return f"The channels come last, but must come after the batch: array.transpose({order})."
    if shape[1] != channels:
        return f"{channels} channels in dimension 1, got {shape[1]}."
    return ""
