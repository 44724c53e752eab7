"""Tensors from files checked against the model that they are for.

Before the run, only input that cannot run is an error, and input out of range a warning. After a
failed run, the layer that failed tells what is wrong with the input.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from hookscope.errors import InputError
from hookscope.sources.layouts import BATCH
from hookscope.sources.loaded import LoadedModel
from hookscope.tensors.nested import as_call, walk

log = logging.getLogger("hookscope")

# Images that are normalised or scaled to 0-1 stay far below this value; images in bytes do not.
_MAX_NORMALISED = 20.0
_AS_FLOATS = "Save it as floating numbers: numpy.save(FILE, array.astype('float32'))."
_AS_IDS = "Give ints:SHAPE:0-{0}, or save them so: numpy.save(FILE, ids.astype('int64'))."


def check_input(loaded: LoadedModel, value: Any) -> None:
    """Check an image batch against the model; warn if its values look unscaled.

    Nothing is checked for a model whose image shape is not known.

    Raises:
        InputError: rank, channels or dtype do not fit; the hint says how to convert them.
    """
    args, kwargs = as_call(value)
    shape = loaded.shape
    if loaded.own_recipe is None or loaded.own_example is not None or shape is None:
        return
    first = next((tensor for _, tensor in walk((args, kwargs))), None)
    if first is None:
        return
    if loaded.layout is BATCH and len(args) == 1 and isinstance(args[0], Tensor):
        _check_images(loaded.word, shape, first)
    if (
        first.is_floating_point()
        and first.numel()
        and first.min() >= 0
        and first.max() > _MAX_NORMALISED
    ):
        log.warning(
            "input: the values run from %g to %g, and %s is made for other ones: %s. Divide by 255"
            " what runs to 255, and normalise it; or give the image file",
            first.min(),
            first.max(),
            loaded.word,
            loaded.own_recipe.text,
        )


def _check_images(spec: str, shape: tuple[int, ...], images: Tensor) -> None:
    lengths, wanted = ("x".join(map(str, each)) for each in (images.shape, shape))
    if not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.")
        raise InputError(
            f"{spec} takes floating numbers such as {wanted}, and the input is {lengths} {kind}.",
            _AS_FLOATS,
        )
    hint = _shape_hint(tuple(images.shape), len(shape), shape[1])
    if hint:
        raise InputError(f"{spec} takes inputs such as {wanted}, and this is {lengths}.", hint)


def explain_layer_error(layer: nn.Module, tensors: list[Tensor]) -> str:
    """Return why a layer may have failed on the model's input, with a hint; empty if unknown.

    Args:
        layer: the module that was running.
        tensors: the tensors that the model was called with.
    """
    weight = getattr(layer, "weight", None)
    if not tensors or not isinstance(weight, Tensor):
        return ""
    floats = [t for t in tensors if t.is_floating_point()]
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        integers = [t for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
        if floats and not integers:
            repair = _AS_IDS.format(layer.num_embeddings)
            return f"An embedding takes whole numbers, and the input holds none. {repair}"
        most = max((int(t.max()) for t in integers if t.numel()), default=0)
        if most >= layer.num_embeddings:
            return (
                f"The embedding has {layer.num_embeddings} rows, and the input holds {most}."
                f" Give numbers from 0 to {layer.num_embeddings - 1}."
            )
        return ""
    if weight.is_floating_point() and not floats:
        return f"The layer takes floating numbers, and the input holds none. {_AS_FLOATS}"
    if isinstance(layer, _ConvNd):
        rank = len(layer.kernel_size) + 2
        return _shape_hint(tuple(tensors[0].shape), rank, layer.in_channels)
    if isinstance(layer, nn.Linear):
        last = tensors[0].shape[-1] if tensors[0].ndim else 0
        if last != layer.in_features and layer.in_features in tensors[0].shape:
            return (
                f"The layer takes {layer.in_features} features in the last dimension; the input"
                " has them in another. Transpose it."
            )
        if tensors[0].ndim == 2 and last == layer.in_features + 1:
            return (
                f"The layer takes {layer.in_features} features, and the input has one more: a"
                " column of labels or of row numbers? Leave it out: --input FILE.csv:0-"
                f"{layer.in_features - 1}."
            )
    return ""


def _shape_hint(shape: tuple[int, ...], rank: int, channels: int) -> str:
    """Why a shape does not fit this rank and these channels, with a hint; empty if it does."""
    if len(shape) == rank - 1 and channels == shape[0]:
        return "The dimension of the batch is missing: array[None] adds one in front."
    if len(shape) == rank - 1 and channels == shape[-1]:
        order = ", ".join(map(str, (rank - 2, *range(rank - 2))))
        return (
            "The dimension of the batch is missing, and the channels come last: write"
            f" array.transpose({order})[None]."
        )
    if len(shape) != rank:
        return f"{rank} dimensions are needed, and it has {len(shape)}."
    if shape[1] != channels and shape[-1] == channels:
        order = ", ".join(map(str, (0, rank - 1, *range(1, rank - 1))))
        return f"The channels come last, and are to come after the batch: array.transpose({order})."
    if shape[1] != channels:
        return f"{channels} channels are needed in dimension 1, and it has {shape[1]}."
    return ""
