"""Feature maps of a tensor: its channels as images, a choice of them, and their resizing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.files.words import shape_label
from hookscope.results.dimensions import channel_dim, layout
from hookscope.results.numpy_stats import magnitude
from hookscope.results.records import Record
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.tensor_key import (
    ATTENTION,
    INPUT_GRAD,
    PARAM_GRAD,
    PARAM_UPDATE,
    UNEDITED,
    WHOLE,
    Index,
    slice_text,
)
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.images.colors import Reals
from hookscope.views.images.figures.drawing import quantity_name


@dataclass(frozen=True)
class FeatureMaps:
    """Some of the feature maps of one tensor."""

    record: Record
    part: str
    values: NDArray[Any]
    channels: tuple[int, ...]
    total: int
    noun: str
    single: tuple[str, ...]
    note: str
    quantity: str


def read_feature_maps(
    capture: CaptureFile,
    key: str,
    index: Index = WHOLE,
    options: PlotOptions = PlotOptions(),  # noqa: B008 - it is frozen
) -> FeatureMaps:
    """Read some of the feature maps of a tensor.

    The maps are of the first sample of a batch and of the middle slice of a volume.
    ``dimensions.layout`` finds the dimension of the channels. Tokens ``(N, L, C)`` are one map with
    a row for each position. With an index, two dimensions are one map, and the first of three
    dimensions has the channels.
    """
    record, shape = capture.record(key), capture.shape(key, index)
    name = f"{key}{slice_text(index)}"
    letters = _letters(capture, record, shape, options.dim, name)
    if not letters or 0 in shape:
        raise _no_maps_error(name, shape)
    at, single = fixed_index(letters, shape, record.kind)
    # Without an index only the entries that are drawn are read.
    array = capture.tensor(key, at) if index == WHOLE else capture.tensor(key, index)[at]
    array = magnitude(array)
    along = letters.replace("0", "").replace("M", "").find("C")
    array = np.atleast_2d(array)[None] if along < 0 else np.moveaxis(array, along, 0)
    total = len(array)
    chosen = pick_channels(array, name, options)
    return FeatureMaps(
        record,
        slice_text(index),
        array[list(chosen)],
        chosen if along >= 0 else (),
        total,
        maps_noun(record.kind),
        single,
        channels_last_note(record, capture.image) if options.dim is None and index == WHOLE else "",
        quantity_name(record.kind),
    )


def is_image_gradient(capture: CaptureFile, record: Record) -> bool:
    """Whether a record is the gradient at the model's RGB images, (N, 3, H, W)."""
    shape = record.shape
    return (
        record.kind.removesuffix(UNEDITED) == INPUT_GRAD
        and len(shape) == 4
        and shape[0] > 0
        and shape[1] == 3
        and tuple(shape[2:]) == capture.image
    )


def read_image_gradient(capture: CaptureFile, record: Record) -> FeatureMaps:
    """Read the gradient at the first image as one map, its largest magnitude over the channels.

    It is the saliency map of Simonyan et al., 2014 (arXiv:1312.6034), section 3.1, where the loss
    is the score of a class.
    """
    values = np.abs(magnitude(capture.tensor(record.key, (0,)))).max(axis=0)
    _, single = fixed_index("0CSS", record.shape, record.kind)
    note = "largest magnitude over the 3 channels"
    quantity = "gradient, magnitude"
    return FeatureMaps(record, "", values[None], (), 3, "channels", single, note, quantity)


def _letters(
    capture: CaptureFile, record: Record, shape: tuple[int, ...], dim: int | None, name: str
) -> str:
    """The role of each dimension, as a letter of ``dimensions.layout``."""
    ndim = len(shape)
    if dim is None:
        if ndim < len(record.shape):
            return {1: "S", 2: "SS", 3: "CSS", 4: "0CSS"}.get(ndim, "")
        return layout(record.type, record.kind, shape, capture.image)
    check_dim(dim, ndim, name)
    others = {3: "SS", 4: "0SS", 5: "0MSS"}.get(ndim)
    if others is None or (dim % ndim == 0 and ndim > 3):
        return ""
    return f"{others[: dim % ndim]}C{others[dim % ndim :]}"


def check_dim(dim: int, ndim: int, name: str) -> None:
    """Check that a dimension exists."""
    if not -ndim <= dim < ndim:
        raise RequestError(
            f"{name} has {ndim} dimensions, so there is no dimension {dim}.",
            "Count from 0, or from -1 at the end.",
        )


def fixed_index(
    letters: str, shape: tuple[int, ...], kind: str
) -> tuple[tuple[int | slice, ...], tuple[str, ...]]:
    """Return the index taken along each dimension that is neither channels, height nor width.

    >>> fixed_index("0CSS", (2, 64, 7, 7), "output")[1]
    ('sample 0 of 2',)
    """
    index: list[int | slice] = []
    descriptions = []
    for letter, length in zip(letters, shape, strict=True):
        if letter not in "0M":
            index.append(slice(None))
            continue
        at = length // 2 if letter == "M" else 0
        index.append(at)
        first = "input channel" if maps_noun(kind) == "filters" else "sample"
        noun = "depth" if letter == "M" else first
        descriptions += [f"{noun} {at} of {length}"] if length > 1 else []
    return tuple(index), tuple(descriptions)


def maps_noun(kind: str) -> str:
    """Return what the channels of a record of this kind are called."""
    if kind in (PARAM_GRAD, PARAM_UPDATE):
        return "filters"
    return "heads" if kind == ATTENTION else "channels"


def channels_last_note(record: Record, image: tuple[int, int] | None) -> str:
    """Return why the last dimension has the channels; empty if it has not."""
    shape = record.shape
    if len(shape) < 4 or not layout(record.type, record.kind, shape, image).endswith("C"):
        return ""
    if channel_dim(record.type, len(shape)) == len(shape) - 1:
        return f"channels last, as {record.type} has them"
    *_, high, wide, count = shape
    reason = f"{high}x{wide} has the aspect ratio of the input, {wide}x{count} does not"
    return f"channels last: {reason}"


def _no_maps_error(name: str, shape: tuple[int, ...]) -> RequestError:
    repair = "Append a slice of two or three dimensions to the key, such as [0] or [0,:,4]."
    if 0 in shape:
        repair = "It is empty; choose another tensor."
    elif not shape and not name.endswith("]"):
        repair = "It is a single number; choose another tensor."
    return RequestError(f"{name} ({shape_label(shape)}) cannot be drawn as maps.", repair)


def resize_maps(maps: NDArray[Any], height: int, width: int) -> Reals:
    """Return maps at another size: means if they shrink, repeated entries if they grow."""
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


def pick_channels(array: NDArray[Any], name: str, options: PlotOptions) -> tuple[int, ...]:
    """Return the channels of ``options``, or if there are none, those that are chosen by them."""
    if options.channels:
        check_channels(options.channels, len(array), name)
        return tuple(options.channels)
    return choose_channels(array, 0, options.by, options.count, options.seed)


def choose_channels(
    array: NDArray[Any], dim: int, by: str = "index", count: int = PlotOptions.count, seed: int = 0
) -> tuple[int, ...]:
    """Return the indices of at most ``count`` channels."""
    channels = array.shape[dim]
    if by == "random":
        draw = np.random.default_rng(seed).permutation(channels)[:count]
        return tuple(sorted(int(channel) for channel in draw))
    if by == "strength":
        # A stable sort keeps equal channels in order.
        order = np.argsort(-channel_strengths(array, dim), kind="stable")
        return tuple(int(channel) for channel in order[:count])
    return tuple(range(min(count, channels)))


def channel_strengths(array: NDArray[Any], dim: int) -> NDArray[np.float64]:
    """Return the mean absolute value of each channel's finite entries; 0 if none is finite."""
    rows = np.moveaxis(magnitude(array), dim, 0).reshape(array.shape[dim], -1)
    sizes = np.abs(rows.astype(np.float64))
    finite = np.isfinite(sizes)
    total = np.where(finite, sizes, 0).sum(axis=1)
    return np.asarray(total / np.maximum(finite.sum(axis=1), 1))


def check_channels(wanted: Sequence[int], channels: int, name: str) -> None:
    """Check that channels exist."""
    wrong = [channel for channel in wanted if not 0 <= channel < channels]
    if wrong:
        raise RequestError(
            f"There is no channel {wrong[0]} in {name}.", f"Name channels from 0 to {channels - 1}."
        )
