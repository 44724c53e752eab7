"""Tensors as matrices: channels by position, and the weights of attention head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.files.words import shape_label
from hookscope.results.dimensions import find_channel_dim
from hookscope.results.numpy_stats import magnitude
from hookscope.results.records import Record
from hookscope.results.tokens import sequence_dims
from hookscope.specs.tensor_key import WHOLE
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.images.feature_maps import channels_last_note, check_channels, pick_channels
from hookscope.views.images.figure_labels import quantity_name
from hookscope.views.images.plot_choice import TensorPart


@dataclass(frozen=True)
class TokenMatrix:
    """One tensor as ``(positions, channels)``."""

    name: str
    values: NDArray[Any]
    channels: tuple[int, ...]
    quantity: str
    note: str
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttentionHeads:
    """Attention weights of one call, ``(heads, queries, keys)``, and the index of each head.

    ``queries`` and ``keys`` are the tokens at these positions; empty if they are not known.
    """

    name: str
    values: NDArray[Any]
    heads: tuple[int, ...]
    queries: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


def read_tokens(
    capture: CaptureFile, part: TensorPart, dim: int | None, channels: Sequence[int] | None
) -> TokenMatrix:
    """Read a tensor as positions by channels.

    Only the first sample of a batch is read. All dimensions other than the channels are positions,
    in row-major order. A slice is read whole, with its last dimension as the channels.
    """
    shape = capture.shape(part.record.key, part.index)
    whole = part.index == WHOLE
    record = part.record
    along = len(shape) - 1
    if whole:
        along = find_channel_dim(record.type, record.kind, shape, capture.image)
    if dim is not None:
        if not -len(shape) <= dim < len(shape):
            raise RequestError(
                f"{part.name} has {len(shape)} dimensions, so there is no dimension {dim}.",
                "Count from 0, or from -1 at the end.",
            )
        along = dim % len(shape)
    if whole and len(shape) > 2 and along > 0 and shape[0]:
        array, along = capture.tensor(part.record.key, (0,)), along - 1
    else:
        array = capture.tensor(part.record.key, part.index)
    if array.ndim < 1 or not array.size:
        raise RequestError(
            f"{part.name} ({shape_label(shape)}) has no positions to plot.", "Use --kind hist."
        )
    table = np.moveaxis(magnitude(array), along, -1)
    table = table.reshape(-1, table.shape[-1])
    check_channels(channels or (), table.shape[1], part.name)
    chosen = tuple(channels or range(table.shape[1]))
    note = channels_last_note(record, capture.image) if whole and dim is None else ""
    tokens: tuple[str, ...] = ()
    if whole and along == 1 and len(shape) == 3:
        tokens = _tokens_along(capture, record, 1)
    quantity = quantity_name(record.kind)
    return TokenMatrix(part.name, table[:, list(chosen)], chosen, quantity, note, tokens)


def _tokens_along(capture: CaptureFile, record: Record, dim: int) -> tuple[str, ...]:
    """The tokens of the first row along a dimension; empty if it is not the sequence."""
    prompt = sequence_dims(record, capture.metadata).get(dim)
    return () if prompt is None else tuple(prompt.label(0, n) for n in range(prompt.length))


def read_heads(
    capture: CaptureFile,
    part: TensorPart,
    channels: Sequence[int] | None,
    by: str,
    count: int,
    seed: int,
) -> AttentionHeads:
    """Read some heads of a tensor ``(batch, heads, queries, keys)``, of the first sample.

    In a slice, and if heads were averaged, all dimensions before queries and keys are heads.
    """
    key, shape = part.record.key, capture.shape(part.record.key, part.index)
    first = part.index == WHOLE and len(shape) > 2 and shape[0]
    array = capture.tensor(key, (0,) if first else part.index)
    if array.ndim < 2 or not array.size:
        raise RequestError(
            f"{part.name} ({shape_label(shape)}) is not a matrix of queries and keys.",
            "Leave out the slice, or use a shorter one: [0,3] is the fourth head.",
        )
    heads = array.reshape(-1, *array.shape[-2:])
    chosen = pick_channels(heads, part.name, channels, by, count, seed)
    sides = [_tokens_along(capture, part.record, len(shape) - n) if first else () for n in (2, 1)]
    return AttentionHeads(part.name, heads[list(chosen)], chosen, *sides)
