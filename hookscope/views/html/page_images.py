"""Feature maps as one picture: a part of a tensor as tiles in a PNG."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hookscope.results.capture_file import CaptureFile
from hookscope.results.dimensions import layout
from hookscope.results.module_tree import ROOT
from hookscope.results.numpy_stats import magnitude
from hookscope.results.records import Record
from hookscope.specs.record_kinds import INPUT
from hookscope.specs.tensor_key import Index
from hookscope.views.html.page import PageFigure
from hookscope.views.images.colors import ColorScale, paint_maps
from hookscope.views.images.feature_maps import (
    channels_last_note,
    fixed_index,
    maps_noun,
    read_feature_maps,
    resize_maps,
)
from hookscope.views.text.formats import number_text, visible

SINGLE_MAP_SCALE = 5  # a tensor of one map has it so many times larger than those of several

MAX_READ_SIDE = 1024  # rows or columns that are read of a map; of more, every second or third one


@dataclass(frozen=True)
class DrawnPart:
    """The part of a tensor that is drawn.

    Attributes:
        index: where it lies in the tensor.
        dim: the dimension of the channels in it, None for the rule of ``read_feature_maps``.
        maps: how many maps it makes.
        map_shape: rows and columns of each, as read.
        told: what of the tensor it is, in words.
    """

    index: Index
    dim: int | None
    maps: int
    map_shape: tuple[int, int]
    told: str

    def drawn(self, side: int) -> tuple[int, int]:
        """Rows and columns of each map in the picture, where ``side`` is the most of several."""
        limit = side if self.maps > 1 else side * SINGLE_MAP_SCALE
        shrink = max(1.0, max(self.map_shape) / limit)
        height, width = (max(1, int(n / shrink)) for n in self.map_shape)
        return height, width


def drawn_part(record: Record, count: int, image: tuple[int, int] | None) -> DrawnPart:
    """Return which part of a tensor is drawn, from what its dimensions are.

    Images give the first ``count`` channels of the first sample, the weights of a convolution the
    first input channel of the first filters, volumes the middle of their depth; tokens and
    everything of fewer dimensions are one map.

    Args:
        record: the tensor's.
        count: how many maps at most.
        image: height and width of what went into the model; see ``dimensions.layout``.

    Example:
        >>> origin = {"module": "a", "call": 1, "what": "output", "kind": "output"}
        >>> origin |= {"dtype": "float32", "device": "cpu", "key": "a/output"}
        >>> part = build_part(Record(**origin, type="Conv2d", shape=(2, 64, 8, 8)), 16, None)
        >>> part.maps, part.map_shape, part.told
        (16, (8, 8), 'channels 0 to 15 of 64, sample 0 of 2')
    """
    shape = record.shape
    letters = layout(record.type, record.kind, shape, image)
    if not count or not letters or 0 in shape:
        return DrawnPart((), None, 0, (0, 0), "")
    at, single = fixed_index(letters, shape, record.kind)
    index = list(at)
    told = list(single)
    sides: list[int] = []
    maps = 1
    for i, (letter, length) in enumerate(zip(letters, shape, strict=True)):
        if letter == "C":
            maps = min(count, length)
            index[i] = slice(0, maps)
            told.insert(0, f"{maps_noun(record.kind)} 0 to {maps - 1} of {length}")
        elif letter == "S":
            step = -(-length // MAX_READ_SIDE)
            index[i] = slice(None, None, step)
            sides.append(-(-length // step))
            told += [f"one of {step} rows or columns"] if step > 1 else []
    told += filter(None, [channels_last_note(record, image)])
    places = letters.replace("0", "").replace("M", "")
    dim = places.find("C") if "C" in places else None
    height, width = sides if len(sides) == 2 else (1, sides[0])
    return DrawnPart(tuple(index), dim, maps, (height, width), ", ".join(told))


def map_figure(capture: CaptureFile, record: Record, count: int, side: int) -> PageFigure | None:
    """Return some feature maps of a tensor in one picture; None where it has none to draw.

    Args:
        capture: the file.
        record: the tensor's.
        count: how many maps at most.
        side: pixels that the longer side of a map has at most.

    Raises:
        ResultsFileError: the values cannot be read.
    """
    part = drawn_part(record, count, capture.image)
    if not part.maps:
        return None
    maps = read_feature_maps(capture, record.key, part.index, dim=part.dim, count=part.maps)
    height, width = part.drawn(side)
    smaller = (height, width) != part.map_shape
    values = resize_maps(maps.values, height, width) if smaller else maps.values
    colors, scales = paint_maps(values)
    drawn = f"{'x'.join(map(str, part.map_shape))} drawn as {height}x{width} means"
    parts = (part.told, drawn if smaller else "", *color_notes(values, scales[0]))
    pixels = tile_maps(colors, min(len(values), TILE_COLUMNS))
    return PageFigure(
        visible(f"Feature maps of {record.key}" if len(values) > 1 else f"{record.key} as a map"),
        "; ".join(filter(None, parts)),
        image=png_data_uri(pixels),
        width=pixels.shape[1],
        height=pixels.shape[0],
        labels=tuple(map(str, maps.channels)) if len(values) > 1 else (),
        columns=min(len(values), TILE_COLUMNS),
    )


def color_notes(values: NDArray[Any], scale: ColorScale) -> Iterator[str]:
    """Yield what the colours of maps mean in words."""
    if np.isfinite(values).any():
        low, high = number_text(scale.low), number_text(scale.high)
        diverging = f"blue {low}, white 0, orange {high}"
        yield diverging if scale.diverging else f"dark {low} to light {high}"
    if np.isnan(values).any():
        yield "magenta NaN"
    if np.isinf(values).any():
        yield "cyan infinite"


TILE_COLUMNS = 4  # tiles in a row

TILE_GAP = 1  # transparent pixels behind each tile, to the right and below


def tile_maps(colors: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Return maps side by side, each with ``GAP`` transparent pixels behind it.

    Args:
        colors: uint8 ``(maps, height, width, 3)``.
        columns: maps in a row.

    Returns:
        uint8 ``(rows, columns, 4)``: red, green, blue and opacity.
    """
    count, height, width, _ = colors.shape
    rows = math.ceil(count / columns)
    cells = np.zeros((rows * columns, height + TILE_GAP, width + TILE_GAP, 4), np.uint8)
    cells[:count, :height, :width, :3] = colors
    cells[:count, :height, :width, 3] = 255
    grid = cells.reshape(rows, columns, height + TILE_GAP, width + TILE_GAP, 4).swapaxes(1, 2)
    return grid.reshape(rows * (height + TILE_GAP), columns * (width + TILE_GAP), 4)


def png_data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return an image as a ``data:`` address of a PNG, with one byte a pixel where that is enough.

    Args:
        pixels: uint8 ``(rows, columns, 4)``: red, green, blue and opacity.
    """
    packed = np.ascontiguousarray(pixels).view("<u4")[..., 0]
    colors, places = np.unique(packed, return_inverse=True)
    options: dict[str, Any] = {}
    if len(colors) <= 256:
        table = colors.view(np.uint8).reshape(-1, 4)
        image = Image.fromarray(places.reshape(packed.shape).astype(np.uint8))
        image.putpalette(table[:, :3].tobytes())
        options["transparency"] = table[:, 3].tobytes()
    else:
        image = Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, "png", **options)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


INPUT_SIDE = 224  # about so many pixels of what went in


def input_figure(capture: CaptureFile) -> PageFigure | None:
    """Return the images that went in, if the file has them; None if it has none.

    Where the file tells what the preprocessing made of black and of white, that is undone; else the
    values are stretched from the least to the largest.

    Args:
        capture: the file. Its images are a recorded input of three channels (or one) of the model
            itself, or of the first layer with such an input.

    Raises:
        ResultsFileError: the values cannot be read.
    """
    found = [r for r in capture.records if r.kind == INPUT and _is_image(r.shape)]
    record = min(found, key=lambda r: r.module != ROOT, default=None)
    if record is None:
        return None
    steps = [slice(None, None, -(-n // INPUT_SIDE)) for n in record.shape[2:]]
    values = capture.tensor(record.key, (slice(0, TILE_COLUMNS), slice(None), *steps))
    values = magnitude(values).astype(np.float64)
    known = _black_and_white(capture, record)
    if known:
        how = "the preprocessing undone"
    else:
        finite = values[np.isfinite(values)]
        known = ([finite.min()], [finite.max()]) if finite.size else ([0.0], [0.0])
        how = "stretched: black is {}, white {}".format(
            *(number_text(float(end)) for (end,) in known)
        )
    low, high = (np.reshape(end, (-1, 1, 1)) for end in known)
    shares = (values - low) / np.where(high == low, 1, high - low)
    bytes_ = np.clip(np.nan_to_num(shares) * 255, 0, 255)
    colors = np.moveaxis(np.rint(bytes_).astype(np.uint8), 1, -1)
    pixels = tile_maps(np.broadcast_to(colors, (*colors.shape[:3], 3)), len(values))
    samples = (
        f", the first {len(values)} of {record.shape[0]}" if record.shape[0] > len(values) else ""
    )
    return PageFigure(
        "What went in",
        f"{visible(record.key)}{samples}; {how}",
        image=png_data_uri(pixels),
        width=pixels.shape[1],
        height=pixels.shape[0],
    )


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[1] in (1, 3) and 0 not in shape


def _black_and_white(
    capture: CaptureFile, record: Record
) -> tuple[list[float], list[float]] | None:
    """What the preprocessing made of them, of each channel.

    Only the model's own input is known to be what the preprocessing made.
    """
    entries = capture.metadata.get("inputs") or [{}]
    ends: tuple[list[float], list[float]] = tuple(entries[0].get(n, []) for n in ("black", "white"))
    fitting = all(len(end) == record.shape[1] for end in ends)
    return ends if record.module == ROOT and fitting else None
