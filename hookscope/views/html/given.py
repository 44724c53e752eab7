"""The images that went into a model, as they looked before they were preprocessed."""

from __future__ import annotations

import numpy as np

from hookscope.results.module_tree import ROOT
from hookscope.results.numpy_stats import magnitude
from hookscope.results.reader import OpenCapture
from hookscope.results.records import Record
from hookscope.specs.record_kinds import INPUT
from hookscope.views.html.model import Figure
from hookscope.views.html.pixels import COLUMNS, png, tiles
from hookscope.views.text.text import real, visible

SIDE = 224  # about so many pixels of what went in


def input_picture(capture: OpenCapture) -> Figure | None:
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
    steps = [slice(None, None, -(-n // SIDE)) for n in record.shape[2:]]
    values = capture.tensor(record.key, (slice(0, COLUMNS), slice(None), *steps))
    values = magnitude(values).astype(np.float64)
    known = _black_and_white(capture, record)
    if known:
        how = "the preprocessing undone"
    else:
        finite = values[np.isfinite(values)]
        known = ([finite.min()], [finite.max()]) if finite.size else ([0.0], [0.0])
        how = "stretched: black is {}, white {}".format(*(real(float(end)) for (end,) in known))
    low, high = (np.reshape(end, (-1, 1, 1)) for end in known)
    shares = (values - low) / np.where(high == low, 1, high - low)
    bytes_ = np.clip(np.nan_to_num(shares) * 255, 0, 255)
    colors = np.moveaxis(np.rint(bytes_).astype(np.uint8), 1, -1)
    pixels = tiles(np.broadcast_to(colors, (*colors.shape[:3], 3)), len(values))
    samples = (
        f", the first {len(values)} of {record.shape[0]}" if record.shape[0] > len(values) else ""
    )
    return Figure(
        "What went in",
        f"{visible(record.key)}{samples}; {how}",
        image=png(pixels),
        width=pixels.shape[1],
        height=pixels.shape[0],
    )


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[1] in (1, 3) and 0 not in shape


def _black_and_white(
    capture: OpenCapture, record: Record
) -> tuple[list[float], list[float]] | None:
    """What the preprocessing made of them, of each channel.

    Only the model's own input is known to be what the preprocessing made.
    """
    entries = capture.metadata.get("inputs") or [{}]
    ends: tuple[list[float], list[float]] = tuple(entries[0].get(n, []) for n in ("black", "white"))
    fitting = all(len(end) == record.shape[1] for end in ends)
    return ends if record.module == ROOT and fitting else None
