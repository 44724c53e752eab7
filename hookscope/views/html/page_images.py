"""The images of a page as PNG: feature maps of a tensor as tiles, and the input images."""

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

from hookscope.escapes import visible
from hookscope.files.words import number_text, shape_text
from hookscope.results.dimensions import layout
from hookscope.results.numpy_stats import magnitude
from hookscope.results.records import Record
from hookscope.specs.patterns import ROOT
from hookscope.specs.plot_options import PlotOptions
from hookscope.specs.tensor_key import INPUT, Index, is_gradient
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.html.page import PageFigure
from hookscope.views.images.colors import PERCENTILE, ColorScale, paint_maps
from hookscope.views.images.feature_maps import (
    channels_last_note,
    fixed_index,
    maps_noun,
    read_feature_maps,
    resize_maps,
)

TILE_COLUMNS = 4  # tiles in a row
MAX_ASPECT = 16  # width of an image of maps, relative to its height
TILE_GAP = 1  # transparent pixels to the right of each tile and below it
INPUT_SIDE = 224  # pixels of the longer side of an input image, about
SINGLE_MAP_SCALE = 5  # a single map is drawn larger by this factor
MAX_READ_SIDE = 1024  # rows or columns read of a map; of larger maps, every n-th


@dataclass(frozen=True)
class DrawnPart:
    """The part of a tensor that is drawn."""

    index: Index
    dim: int | None
    maps: int
    map_shape: tuple[int, int]
    description: str

    def drawn(self, side: int) -> tuple[int, int]:
        """Rows and columns of each map in the image; ``side`` limits those of several maps."""
        limit = side if self.maps > 1 else side * SINGLE_MAP_SCALE
        shrink = max(1.0, max(self.map_shape) / limit)
        height, width = (max(1, int(n / shrink)) for n in self.map_shape)
        return height, width

    @property
    def columns(self) -> int:
        """Maps in a row of the image."""
        return min(self.maps, TILE_COLUMNS)

    def row_repeats(self, side: int) -> int:
        """How often each row of pixels is repeated, so that a vector is a visible band.

        The page scales both directions alike: browsers draw pixels of unequal width otherwise.
        """
        height, width = self.drawn(side)
        return -(-width * self.columns // (height * -(-self.maps // self.columns) * MAX_ASPECT))


def drawn_part(record: Record, count: int, image: tuple[int, int] | None) -> DrawnPart:
    """Return which part of a tensor is drawn, from the roles of its dimensions.

    For images, the first ``count`` channels of the first sample are drawn, for the weights of a
    convolution the first input channel of the first filters, for volumes the middle slice. Tokens
    and tensors of fewer dimensions are one map.
    """
    shape = record.shape
    letters = layout(record.type, record.kind, shape, image)
    if not count or not letters or 0 in shape:
        return DrawnPart((), None, 0, (0, 0), "")
    at, single = fixed_index(letters, shape, record.kind)
    index = list(at)
    notes = list(single)
    sides: list[int] = []
    maps = 1
    for i, (letter, length) in enumerate(zip(letters, shape, strict=True)):
        if letter == "C":
            maps = min(count, length)
            index[i] = slice(0, maps)
            noun = maps_noun(record.kind)
            numbers = f"{noun} 0 to {maps - 1}" if maps > 1 else f"{noun.removesuffix('s')} 0"
            notes.insert(0, f"{numbers} of {length}")
        elif letter == "S":
            step = -(-length // MAX_READ_SIDE)
            index[i] = slice(None, None, step)
            sides.append(-(-length // step))
            notes += [f"1 in {step} rows or columns"] if step > 1 else []
    notes += filter(None, [channels_last_note(record, image)])
    kept = letters.replace("0", "").replace("M", "")
    dim = kept.find("C") if "C" in kept else None
    height, width = sides if len(sides) == 2 else (1, sides[0])
    return DrawnPart(tuple(index), dim, maps, (height, width), ", ".join(notes))


def map_figure(capture: CaptureFile, record: Record, count: int, side: int) -> PageFigure | None:
    """Return feature maps of a tensor as one image; None if there are none to draw."""
    part = drawn_part(record, count, capture.image)
    if not part.maps:
        return None
    options = PlotOptions(dim=part.dim, count=part.maps)
    maps = read_feature_maps(capture, record.key, part.index, options)
    height, width = part.drawn(side)
    smaller = (height, width) != part.map_shape
    values = resize_maps(maps.values, height, width) if smaller else maps.values
    colors, scales = paint_maps(values, record.kind)
    drawn = f"{shape_text(part.map_shape)} averaged to {height}x{width}"
    parts = (
        part.description,
        drawn if smaller else "",
        *color_notes(values, scales[0], record.kind),
    )
    pixels = tile_maps(np.repeat(colors, part.row_repeats(side), axis=1), part.columns)
    return PageFigure(
        visible(f"Feature maps of {record.key}" if len(values) > 1 else f"{record.key} as a map"),
        "; ".join(filter(None, parts)),
        image=png_data_uri(pixels),
        width=pixels.shape[1],
        height=pixels.shape[0],
        labels=tuple(map(str, maps.channels)) if len(values) > 1 else (),
        columns=part.columns,
    )


def color_notes(values: NDArray[Any], scale: ColorScale, kind: str) -> Iterator[str]:
    """Yield what the colours of maps mean; ``kind`` is that of their record."""
    if np.isfinite(values).any():
        low, high = number_text(scale.low), number_text(scale.high)
        diverging = f"blue {low}, white 0, orange {high}"
        yield diverging if scale.diverging else f"dark {low} to light {high}"
        if is_gradient(kind):
            yield f"colours end at the {PERCENTILE}th percentile"
    if np.isnan(values).any():
        yield "magenta NaN"
    if np.isinf(values).any():
        yield "cyan infinite"


def tile_maps(colors: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Return maps side by side, each with a transparent gap after it if there are several."""
    count, height, width, _ = colors.shape
    rows = math.ceil(count / columns)
    gap = TILE_GAP if count > 1 else 0
    cells = np.zeros((rows * columns, height + gap, width + gap, 4), np.uint8)
    cells[:count, :height, :width, :3] = colors
    cells[:count, :height, :width, 3] = 255
    grid = cells.reshape(rows, columns, height + gap, width + gap, 4).swapaxes(1, 2)
    return grid.reshape(rows * (height + gap), columns * (width + gap), 4)


def png_data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return an image as the ``data:`` URI of a PNG, with a palette for up to 256 colours."""
    packed = np.ascontiguousarray(pixels).view("<u4")[..., 0]
    colors, indexes = np.unique(packed, return_inverse=True)
    options: dict[str, Any] = {}
    if len(colors) <= 256:
        table = colors.view(np.uint8).reshape(-1, 4)
        image = Image.fromarray(indexes.reshape(packed.shape).astype(np.uint8))
        image.putpalette(table[:, :3].tobytes())
        options["transparency"] = table[:, 3].tobytes()
    else:
        image = Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, "png", **options)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def input_figure(capture: CaptureFile) -> PageFigure | None:
    """Return the input images, without preprocessing if it is known; None if the file has none."""
    candidates = [r for r in capture.records if r.kind == INPUT and _is_image(r.shape)]
    record = min(candidates, key=lambda r: r.module != ROOT, default=None)
    if record is None:
        return None
    steps = [slice(None, None, -(-n // INPUT_SIDE)) for n in record.shape[2:]]
    values = capture.tensor(record.key, (slice(0, TILE_COLUMNS), slice(None), *steps))
    values = magnitude(values).astype(np.float64)
    ends = _black_and_white(capture, record)
    if ends:
        how = "shown without its preprocessing"
    else:
        finite = values[np.isfinite(values)]
        ends = ([finite.min()], [finite.max()]) if finite.size else ([0.0], [0.0])
        black, white = (number_text(float(end)) for (end,) in ends)
        how = f"scaled to its range: black is {black}, white is {white}"
    low, high = (np.reshape(end, (-1, 1, 1)) for end in ends)
    shares = (values - low) / np.where(high == low, 1, high - low)
    bytes_ = np.clip(np.nan_to_num(shares) * 255, 0, 255)
    colors = np.moveaxis(np.rint(bytes_).astype(np.uint8), 1, -1)
    pixels = tile_maps(np.broadcast_to(colors, (*colors.shape[:3], 3)), len(values))
    total = record.shape[0]
    samples = f", the first {len(values)} of {total}" if total > len(values) else ""
    return PageFigure(
        "Input",
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
    """The values of black and white in each channel of the model's input; None if unknown."""
    entries = capture.metadata.get("inputs") or [{}]
    ends: tuple[list[float], list[float]] = tuple(entries[0].get(n, []) for n in ("black", "white"))
    fitting = all(len(end) == record.shape[1] for end in ends)
    return ends if record.module == ROOT and fitting else None
