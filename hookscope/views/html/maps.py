"""Feature maps as one picture: a part of a tensor as tiles in a PNG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.dimensions import layout
from hookscope.results.reader import OpenCapture
from hookscope.results.records import Record
from hookscope.specs.tensor_key import Index
from hookscope.views.html.model import Figure
from hookscope.views.html.pixels import COLUMNS, png, tiles
from hookscope.views.images.colors import Scale, paint_maps
from hookscope.views.images.maps import feature_maps, last_note, noun_of, resize, taken
from hookscope.views.text.text import real, visible

ALONE = 5  # a tensor of one map has it so many times larger than those of several
FINEST = 1024  # rows or columns that are read of a map; of more, every second or third one


@dataclass(frozen=True)
class Part:
    """The part of a tensor that is drawn.

    Attributes:
        index: where it lies in the tensor.
        dim: the dimension of the channels in it, None for the rule of ``feature_maps``.
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
        limit = side if self.maps > 1 else side * ALONE
        shrink = max(1.0, max(self.map_shape) / limit)
        height, width = (max(1, int(n / shrink)) for n in self.map_shape)
        return height, width


def part_of(record: Record, count: int, image: tuple[int, int] | None) -> Part:
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
        >>> part = part_of(Record(**origin, type="Conv2d", shape=(2, 64, 8, 8)), 16, None)
        >>> part.maps, part.map_shape, part.told
        (16, (8, 8), 'channels 0 to 15 of 64, sample 0 of 2')
    """
    shape = record.shape
    letters = layout(record.type, record.kind, shape, image)
    if not count or not letters or 0 in shape:
        return Part((), None, 0, (0, 0), "")
    at, single = taken(letters, shape, record.kind)
    index = list(at)
    told = list(single)
    sides: list[int] = []
    maps = 1
    for i, (letter, length) in enumerate(zip(letters, shape, strict=True)):
        if letter == "C":
            maps = min(count, length)
            index[i] = slice(0, maps)
            told.insert(0, f"{noun_of(record.kind)} 0 to {maps - 1} of {length}")
        elif letter == "S":
            step = -(-length // FINEST)
            index[i] = slice(None, None, step)
            sides.append(-(-length // step))
            told += [f"one of {step} rows or columns"] if step > 1 else []
    told += filter(None, [last_note(record, image)])
    places = letters.replace("0", "").replace("M", "")
    dim = places.find("C") if "C" in places else None
    height, width = sides if len(sides) == 2 else (1, sides[0])
    return Part(tuple(index), dim, maps, (height, width), ", ".join(told))


def sheet(capture: OpenCapture, record: Record, count: int, side: int) -> Figure | None:
    """Return some feature maps of a tensor in one picture; None where it has none to draw.

    Args:
        capture: the file.
        record: the tensor's.
        count: how many maps at most.
        side: pixels that the longer side of a map has at most.

    Raises:
        ResultsFileError: the values cannot be read.
    """
    part = part_of(record, count, capture.image)
    if not part.maps:
        return None
    maps = feature_maps(capture, record.key, part.index, dim=part.dim, count=part.maps)
    height, width = part.drawn(side)
    smaller = (height, width) != part.map_shape
    values = resize(maps.values, height, width) if smaller else maps.values
    colors, scales = paint_maps(values)
    drawn = f"{'x'.join(map(str, part.map_shape))} drawn as {height}x{width} means"
    parts = (part.told, drawn if smaller else "", *colors_text(values, scales[0]))
    pixels = tiles(colors, min(len(values), COLUMNS))
    return Figure(
        visible(f"Feature maps of {record.key}" if len(values) > 1 else f"{record.key} as a map"),
        "; ".join(filter(None, parts)),
        image=png(pixels),
        width=pixels.shape[1],
        height=pixels.shape[0],
        labels=tuple(map(str, maps.channels)) if len(values) > 1 else (),
        columns=min(len(values), COLUMNS),
    )


def colors_text(values: NDArray[Any], scale: Scale) -> Iterator[str]:
    """Yield what the colours of maps mean in words."""
    if np.isfinite(values).any():
        low, high = real(scale.low), real(scale.high)
        diverging = f"blue {low}, white 0, orange {high}"
        yield diverging if scale.diverging else f"dark {low} to light {high}"
    if np.isnan(values).any():
        yield "magenta NaN"
    if np.isinf(values).any():
        yield "cyan infinite"
