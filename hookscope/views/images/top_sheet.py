"""A sheet of the images that excite units most and least: a row of the most, a row of the least."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from hookscope.errors import RequestError
from hookscope.file_analysis.units.top_inputs import RankedInput, TopInputs
from hookscope.files.words import number_text, plural
from hookscope.stores.features.manifest_schema import SIDES, VisiblePart
from hookscope.views.images.cam_sheet import BASE_DPI, CamSheet, Label, Pixels, Tile
from hookscope.views.text.top import input_name, quantile_text, top_title

SIDE = 96  # of a picture, in pixels at 150 dots per inch; as are the lengths below
GAP, LINE, FONT = 10, 17, 12
NAMES = 60  # room for the words "most" and "least"
MOST_PICTURES = 2000
_PAPER = 235  # grey of a picture that cannot be shown
_DARK, _LIGHT = (0, 0, 0), (255, 225, 0)  # of a frame, outside and inside: seen on any image

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class _Square:
    """A picture, and the edges of the image in it; None if the image cannot be shown."""

    pixels: Pixels
    box: Box | None = None


@dataclass
class _Pictures:
    """The images of inputs, read once each, and why some cannot be shown."""

    result: TopInputs
    side: int
    missing: dict[str, str] = field(default_factory=dict)
    _read: dict[str, _Square] = field(default_factory=dict)

    def of(self, ranked: RankedInput) -> Pixels:
        """The image, fitted into a square, with a frame around the cell of its largest value."""
        if ranked.name not in self._read:
            self._read[ranked.name] = self._square(ranked)
        square = self._read[ranked.name]
        grid, part = self.result.grid, self.result.visible_part
        if not (square.box and grid and part and ranked.position):
            return square.pixels
        cell = cell_box(square.box, part, grid, ranked.position)
        return _framed(square.pixels, cell, max(self.side // SIDE, 1))

    def _square(self, ranked: RankedInput) -> _Square:
        square = _Square(np.full((self.side, self.side, 3), _PAPER, np.uint8))
        try:
            data = Path(ranked.name).read_bytes()
        except OSError:
            self.missing[ranked.name] = "not at its path any more (moved or deleted)"
            return square
        if ranked.sha256 and hashlib.sha256(data).hexdigest() != ranked.sha256:
            self.missing[ranked.name] = "changed since the features were extracted"
            return square
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a picture that is too large to decode safely
                image = ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB")
        except Exception:  # pillow raises many kinds for damaged files
            self.missing[ranked.name] = "not an image that can be decoded"
            return square
        scale = self.side / max(image.size)
        size = tuple(max(round(length * scale), 1) for length in image.size)
        method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
        pixels = np.asarray(image.resize((size[0], size[1]), method))
        top, left = ((self.side - length) // 2 for length in pixels.shape[:2])
        square.pixels[top : top + len(pixels), left : left + pixels.shape[1]] = pixels
        return _Square(square.pixels, (left, top, left + size[0], top + size[1]))


def cell_box(
    image: Box, part: VisiblePart, grid: tuple[int, int], position: tuple[int, ...]
) -> Box:
    """Return the edges of a grid cell on an image: left, top, right, bottom.

    Args:
        image: the edges of the whole image.
        part: the part of the image that the grid covers.
        grid: numbers of rows and columns of the grid.
        position: row and column of the cell.

    Example:
        >>> part = {"of": "shorter side", "width": 1.0, "height": 1.0}
        >>> cell_box((0, 0, 200, 100), part, (2, 4), (1, 0))
        (50.0, 50.0, 75.0, 100.0)
    """
    left, top, right, bottom = image
    sides = right - left, bottom - top
    shorter = min(sides)
    width, height = (
        share * (side if part["of"] == SIDES else shorter)
        for share, side in zip((part["width"], part["height"]), sides, strict=True)
    )
    left, top = (left + right - width) / 2, (top + bottom - height) / 2
    row, column = position
    down, across = height / grid[0], width / grid[1]
    return (
        *(left + across * column, top + down * row),
        *(left + across * (column + 1), top + down * (row + 1)),
    )


def _framed(pixels: Pixels, box: Box, thickness: int) -> Pixels:
    """A copy with a frame on the edges of a box, dark outside and light inside."""
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = map(round, box)
    for color, outside in ((_DARK, thickness), (_LIGHT, 0)):
        edges = (left - outside, top - outside, right - 1 + outside, bottom - 1 + outside)
        # A cell may have no pixel of its own.
        corner = max(edges[2], edges[0]), max(edges[3], edges[1])
        draw.rectangle((*edges[:2], *corner), outline=color, width=thickness)
    return np.asarray(image)


def top_sheet(result: TopInputs, dpi: int) -> CamSheet:
    """Return the sheet: for each unit its quantiles, the images of both ends, and their values.

    An image that was moved or changed, or cannot be decoded, is an empty square; a line at the end
    says so.

    Raises:
        RequestError: the inputs are not files, or there are too many pictures.
    """
    inputs = [one for unit in result.units for one in (*unit.most, *unit.least)]
    if not any(one.sha256 for one in inputs):
        raise RequestError(
            f"The inputs of {result.folder} are items of a Dataset, which have no files to show.",
            "Write the ranking as JSON: -o top.json",
        )
    if len(inputs) > MOST_PICTURES:
        raise RequestError(
            f"The sheet would have {len(inputs)} pictures, and the limit is {MOST_PICTURES}.",
            "Name fewer --units, or a smaller --count.",
        )
    return _lay_out(result, dpi)


def _lay_out(result: TopInputs, dpi: int) -> CamSheet:
    side, gap, line, names = (max(round(n * dpi / BASE_DPI), 1) for n in (SIDE, GAP, LINE, NAMES))
    most = max(max(len(unit.most), len(unit.least)) for unit in result.units)
    width = names + gap + max(most * (side + gap), 7 * side)
    pictures = _Pictures(result, side)
    tiles: list[Tile] = []
    labels = [Label(gap, gap, top_title(result), width - gap)]
    y = gap + 2 * line
    for unit in result.units:
        text = f"{result.what} {unit.unit}: quantiles {quantile_text(unit)}"
        labels.append(Label(gap, y, text, width - gap))
        y += line
        for end, inputs in (("most", unit.most), ("least", unit.least)):
            labels.append(Label(gap, y, end, names))
            for n, ranked in enumerate(inputs):
                x = names + gap + n * (side + gap)
                tiles.append(Tile(x, y, pictures.of(ranked)))
                labels.append(Label(x, y + side + gap // 3, number_text(ranked.value, 3), side))
                labels.append(Label(x, y + side + gap // 3 + line, input_name(ranked), side))
            y += side + 2 * line + gap
        y += gap
    for text in _missing_lines(pictures.missing):
        labels.append(Label(gap, y, text, width - gap))
        y += line
    font = max(round(FONT * dpi / BASE_DPI), 1)
    return CamSheet((width, y + gap), tuple(tiles), tuple(labels), font, dpi)


def _missing_lines(missing: dict[str, str]) -> Iterator[str]:
    for reason in dict.fromkeys(missing.values()):
        names = [os.path.basename(name) for name, why in missing.items() if why == reason]
        verb = "is" if len(names) == 1 else "are"
        more = ", ..." if len(names) > 3 else ""
        yield f"{plural(len(names), 'image')} {verb} {reason}: {', '.join(names[:3])}{more}."
