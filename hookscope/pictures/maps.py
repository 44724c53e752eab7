"""Feature maps: which maps a tensor is made of, some of them, and each at another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.arrays import magnitude
from hookscope.dimensions import channel_dim
from hookscope.errors import RequestError
from hookscope.keys import WHOLE, Index, slice_text
from hookscope.pictures.channels import COUNT, choose_channels, demand_channels
from hookscope.pictures.colors import Reals
from hookscope.reader import OpenCapture
from hookscope.records import Record


@dataclass(frozen=True)
class Maps:
    """Some of the feature maps of one tensor.

    Attributes:
        record: the tensor's.
        part: the slice as it is written behind the key, empty for all of it.
        values: ``(maps, height, width)``, real; complex numbers by their magnitude.
        channels: the index of each map along the channels; empty where the tensor is one map.
        total: how many there are to choose from.
        samples: how many samples the batch has, of which this is the first; 0 where it is a part
            that was asked for.
    """

    record: Record
    part: str
    values: NDArray[Any]
    channels: tuple[int, ...]
    total: int
    samples: int


def feature_maps(
    capture: OpenCapture,
    key: str,
    index: Index = WHOLE,
    *,
    dim: int | None = None,
    channels: Sequence[int] | None = None,
    by: str = "index",
    count: int = COUNT,
    seed: int = 0,
) -> Maps:
    """Read some of the feature maps of a tensor.

    Of a batch it is the first sample, and channels lie where ``dimensions.channel_dim`` says, so
    that tokens ``(N, L, C)`` are one map with a row for each position. A part that an index cuts
    out of a tensor is taken as it is: two dimensions are one map, of three the first are channels.

    Args:
        capture: the file.
        key: the tensor.
        index: the part of it.
        dim: the dimension of the channels among those of the part, where the rule does not hold.
        channels: these, in place of ``count`` chosen ``by``: see ``channels.choose_channels``.
        by: ``index``, ``strength`` or ``random``.
        count: how many at most.
        seed: of the random choice.

    Raises:
        RequestError: there is no such key or channel, or the dimensions make no maps.
        StoreError: the values cannot be read.
    """
    record, shape = capture.record(key), capture.shape(key, index)
    cut = len(shape) < len(capture.shape(key))
    name = f"{key}{slice_text(index)}"
    if dim is not None and not -len(shape) <= dim < len(shape):
        raise RequestError(f"{name} has {len(shape)} dimensions, and no dimension {dim}.")
    along = _channels_along(record.type, len(shape), cut) if dim is None else dim % len(shape)
    samples = 0
    if _is_batch(shape, cut, along):
        samples = shape[0]
        if not samples:
            raise _no_maps(name, shape)
        # Only the first sample is read, unless an index has cut the batch itself.
        array = capture.tensor(key, (0,)) if index == WHOLE else capture.tensor(key, index)[0]
        along = None if along is None else along - 1
    else:
        array = capture.tensor(key, index)
    array = magnitude(array)
    if along is not None and array.ndim == 3:
        array = np.moveaxis(array, along, 0)
    elif array.ndim in (1, 2) and dim is None:
        array, along = np.atleast_2d(array)[None], None
    else:
        raise _no_maps(name, shape)
    if not array.size:
        raise _no_maps(name, shape)
    total = len(array)
    demand_channels(channels or (), total, name)
    chosen = tuple(channels or ()) or choose_channels(array, 0, by, count, seed)
    shown = () if along is None else chosen
    return Maps(record, slice_text(index), array[list(chosen)], shown, total, samples)


def _channels_along(type: str, ndim: int, cut: bool) -> int | None:
    """The dimension of the channels, None where they are a side of the map itself."""
    if ndim == 3:
        # An image without a batch in a module of images; else tokens or signals, which are a map.
        return 0 if cut or type.endswith("2d") else None
    return channel_dim(type, ndim) if ndim == 4 else None


def _is_batch(shape: tuple[int, ...], cut: bool, along: int | None) -> bool:
    return (len(shape) == 4 and along != 0) or (len(shape) == 3 and along is None and not cut)


def _no_maps(name: str, shape: tuple[int, ...]) -> RequestError:
    looks = "x".join(map(str, shape)) or "a single number"
    return RequestError(
        f"{name} ({looks}) cannot be drawn as maps.",
        "Give a slice of two or three dimensions behind the key, such as [0] or [0,:,4].",
    )


def resize(maps: NDArray[Any], height: int, width: int) -> Reals:
    """Return maps at another size: means where they shrink, repeated entries where they grow.

    Args:
        maps: ``(maps, rows, columns)``, real.
        height: rows wanted.
        width: columns wanted.

    Returns:
        float64 ``(maps, height, width)``. A mean that takes in a NaN is NaN.

    Example:
        >>> resize(np.array([[[1.0, 3.0]]]), 2, 1).tolist()
        [[[2.0], [2.0]]]
    """
    with np.errstate(invalid="ignore"):  # infinities of both signs in one mean
        return _along(_along(maps.astype(np.float64), 1, height), 2, width)


def _along(array: Reals, dim: int, size: int) -> Reals:
    old = array.shape[dim]
    starts = np.arange(size) * old // size
    if size >= old:
        grown: Reals = array.take(starts, axis=dim)
        return grown
    lengths = np.diff([*starts, old])
    shares = np.expand_dims(lengths, tuple(i for i in range(array.ndim) if i != dim))
    sums: Reals = np.add.reduceat(array, starts, axis=dim)
    means: Reals = sums / shares
    return means
