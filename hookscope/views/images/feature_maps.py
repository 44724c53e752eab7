"""Feature maps: which maps a tensor is made of, some of them, and each at another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.results.capture_file import CaptureFile
from hookscope.results.dimensions import channel_dim, layout
from hookscope.results.numpy_stats import magnitude
from hookscope.results.records import Record
from hookscope.specs.record_kinds import ATTENTION, PARAM_GRAD, PARAM_UPDATE
from hookscope.specs.tensor_key import WHOLE, Index, slice_text
from hookscope.views.images.colors import Reals
from hookscope.views.images.figure_labels import shape_label

DEFAULT_COUNT = 16  # so many are shown where nobody says how many


@dataclass(frozen=True)
class FeatureMaps:
    """Some of the feature maps of one tensor.

    Attributes:
        record: the tensor's.
        part: the slice as it is written behind the key, empty for all of it.
        values: ``(maps, height, width)``, real; complex numbers by their magnitude.
        channels: the index of each map along the channels; empty where the tensor is one map.
        total: how many there are to choose from.
        noun: what they are: channels, filters or heads.
        single: what was taken of the other dimensions, such as ``sample 0 of 2``.
        note: how the channels were found, where they are not those of PyTorch's own layers.
    """

    record: Record
    part: str
    values: NDArray[Any]
    channels: tuple[int, ...]
    total: int
    noun: str
    single: tuple[str, ...]
    note: str


def read_feature_maps(
    capture: CaptureFile,
    key: str,
    index: Index = WHOLE,
    *,
    dim: int | None = None,
    channels: Sequence[int] | None = None,
    by: str = "index",
    count: int = DEFAULT_COUNT,
    seed: int = 0,
) -> FeatureMaps:
    """Read some of the feature maps of a tensor.

    Of a batch it is the first sample, of a volume the middle of its depth, and channels lie where
    ``dimensions.layout`` says, so that tokens ``(N, L, C)`` are one map with a row for each
    position. A part that an index cuts out of a tensor is taken as it is: two dimensions are one
    map, of three the first are channels.

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
        ResultsFileError: the values cannot be read.
    """
    record, shape = capture.record(key), capture.shape(key, index)
    name = f"{key}{slice_text(index)}"
    letters = _letters(capture, record, shape, dim, name)
    if not letters or 0 in shape:
        raise _no_maps_error(name, shape)
    at, single = fixed_index(letters, shape, record.kind)
    # Only the entries that are drawn are read, unless an index has cut the tensor itself.
    array = capture.tensor(key, at) if index == WHOLE else capture.tensor(key, index)[at]
    array = magnitude(array)
    along = letters.replace("0", "").replace("M", "").find("C")
    array = np.atleast_2d(array)[None] if along < 0 else np.moveaxis(array, along, 0)
    total = len(array)
    check_channels(channels or (), total, name)
    chosen = tuple(channels or ()) or choose_channels(array, 0, by, count, seed)
    return FeatureMaps(
        record,
        slice_text(index),
        array[list(chosen)],
        chosen if along >= 0 else (),
        total,
        maps_noun(record.kind),
        single,
        channels_last_note(record, capture.image) if dim is None and index == WHOLE else "",
    )


def _letters(
    capture: CaptureFile, record: Record, shape: tuple[int, ...], dim: int | None, name: str
) -> str:
    """What each dimension of the part is, as ``dimensions.layout`` tells it."""
    ndim = len(shape)
    if dim is None:
        if ndim < len(record.shape):
            return {1: "S", 2: "SS", 3: "CSS", 4: "0CSS"}.get(ndim, "")
        return layout(record.type, record.kind, shape, capture.image)
    if not -ndim <= dim < ndim:
        raise RequestError(
            f"{name} has {ndim} dimensions, and no dimension {dim}.",
            "Count from 0, or from -1 at the end.",
        )
    others = {3: "SS", 4: "0SS", 5: "0MSS"}.get(ndim)
    if others is None or (dim % ndim == 0 and ndim > 3):
        return ""
    return f"{others[: dim % ndim]}C{others[dim % ndim :]}"


def fixed_index(
    letters: str, shape: tuple[int, ...], kind: str
) -> tuple[tuple[int | slice, ...], tuple[str, ...]]:
    """Return which entry of each dimension is drawn that is neither channels nor a side.

    Args:
        letters: see ``dimensions.layout``.
        shape: of the tensor.
        kind: of the record.

    Returns:
        An index of the tensor, and what it takes in words.

    Example:
        >>> taken("0CSS", (2, 64, 7, 7), "output")[1]
        ('sample 0 of 2',)
    """
    index: list[int | slice] = []
    told = []
    for letter, length in zip(letters, shape, strict=True):
        if letter not in "0M":
            index.append(slice(None))
            continue
        at = length // 2 if letter == "M" else 0
        index.append(at)
        first = "input channel" if maps_noun(kind) == "filters" else "sample"
        told += [f"{'depth' if letter == 'M' else first} {at} of {length}"] if length > 1 else []
    return tuple(index), tuple(told)


def maps_noun(kind: str) -> str:
    """Return what the maps of a record of this kind are."""
    if kind in (PARAM_GRAD, PARAM_UPDATE):
        return "filters"
    return "heads" if kind == ATTENTION else "channels"


def channels_last_note(record: Record, image: tuple[int, int] | None) -> str:
    """Return why the channels of a tensor of maps are its last dimension; empty if they are not."""
    shape = record.shape
    if len(shape) < 4 or not layout(record.type, record.kind, shape, image).endswith("C"):
        return ""
    if channel_dim(record.type, len(shape)) == len(shape) - 1:
        return f"channels last, as {record.type} has them"
    *_, high, wide, count = shape
    return f"channels last: {high}x{wide} has the aspect of the input, {wide}x{count} has not"


def _no_maps_error(name: str, shape: tuple[int, ...]) -> RequestError:
    repair = "Give a slice of two or three dimensions behind the key, such as [0] or [0,:,4]."
    if 0 in shape:
        repair = "It has no entries; name another tensor."
    elif not shape and not name.endswith("]"):
        repair = "It has no sides; name another tensor."
    return RequestError(f"{name} ({shape_label(shape)}) cannot be drawn as maps.", repair)


def resize_maps(maps: NDArray[Any], height: int, width: int) -> Reals:
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
        return _resize_dim(_resize_dim(maps.astype(np.float64), 1, height), 2, width)


def _resize_dim(array: Reals, dim: int, size: int) -> Reals:
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


def choose_channels(
    array: NDArray[Any], dim: int, by: str = "index", count: int = DEFAULT_COUNT, seed: int = 0
) -> tuple[int, ...]:
    """Return the indices of at most ``count`` channels.

    Args:
        array: any shape; real or complex.
        dim: the dimension along which the channels lie.
        by: ``index``: the first ones; ``strength``: those with the largest mean absolute value over
            their finite entries, the strongest first, the lower index first among equals;
            ``random``: some drawn from ``seed``, in rising order.
        count: how many at most.
        seed: of the draw.

    Example:
        >>> choose_channels(np.array([[1.0, -3.0, 2.0]]), 1, "strength", 2)
        (1, 2)
    """
    channels = array.shape[dim]
    if by == "random":
        draw = np.random.default_rng(seed).permutation(channels)[:count]
        return tuple(sorted(int(channel) for channel in draw))
    if by == "strength":
        # A stable sort keeps equals in order.
        order = np.argsort(-channel_strengths(array, dim), kind="stable")
        return tuple(int(channel) for channel in order[:count])
    return tuple(range(min(count, channels)))


def channel_strengths(array: NDArray[Any], dim: int) -> NDArray[np.float64]:
    """Return the mean absolute value of each channel's finite entries; 0 where none is finite."""
    rows = np.moveaxis(magnitude(array), dim, 0).reshape(array.shape[dim], -1)
    sizes = np.abs(rows.astype(np.float64))
    finite = np.isfinite(sizes)
    total = np.where(finite, sizes, 0).sum(axis=1)
    return np.asarray(total / np.maximum(finite.sum(axis=1), 1))


def check_channels(wanted: Sequence[int], channels: int, name: str) -> None:
    """Make sure that the channels named exist.

    Raises:
        RequestError: one lies outside 0 to ``channels - 1``; ``name`` tells whose they are.
    """
    wrong = [channel for channel in wanted if not 0 <= channel < channels]
    if wrong:
        raise RequestError(
            f"There is no channel {wrong[0]} in {name}.", f"Name channels from 0 to {channels - 1}."
        )
