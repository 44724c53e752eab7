"""The picture of the maps of ``cam`` as a sheet: where each image, text and colour bar is."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from hookscope.errors import RequestError
from hookscope.files.optional_packages import package_folders
from hookscope.specs.choices import DPI, MAX_DPI, MIN_DPI, OVERLAY_ALPHA
from hookscope.views.images import require_matplotlib
from hookscope.views.images.colors import (
    RGB,
    SEQUENTIAL,
)
from hookscope.views.images.figures.canvas import color_table, escape_text
from hookscope.views.images.figures.drawing import (
    FONT_FAMILY,
    Drawing,
    paper_style,
)
from hookscope.views.images.figures.grid import add_panel

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties

BASE_DPI = 150  # of the lengths below, which are in pixels; whatever the default is
SIDE = 400  # that the longer side of an image has at least
GAP, BAR, SCALE, LINE = 16, 16, 80, 20  # between parts, the colour bar, its numbers, a line of text
FONT = 14
TITLE = 1.4  # size of the title, as a multiple of that of the text
INK, PAPER = "black", "white"
_ANCHORS = {"line": "la", "top": "lt", "bottom": "lb"}  # those of pillow

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class OverlayStyle:
    """How a map is drawn over its image."""

    alpha: float = OVERLAY_ALPHA
    table: RGB = field(default_factory=lambda: SEQUENTIAL)
    dpi: int = DPI

    def pixels(self, length: float) -> int:
        """Return a length in pixels; ``length`` is that at 150 dots per inch."""
        return max(1, round(length * self.dpi / BASE_DPI))


def overlay_style(alpha: float, colormap: str | None, dpi: int) -> OverlayStyle:
    """Return the style of these options."""
    if not 0 <= alpha <= 1:
        raise RequestError(
            f"alpha is {alpha:g}, and an opacity is from 0 to 1.",
            "Use 0 for the image alone, 1 for the map alone.",
        )
    if not MIN_DPI <= dpi <= MAX_DPI:
        raise RequestError(
            f"dpi is {dpi:g}, and a picture has {MIN_DPI} to {MAX_DPI} pixels per inch.",
            f"The default is {DPI}.",
        )
    if colormap is None:
        return OverlayStyle(alpha, dpi=dpi)
    require_matplotlib()
    return OverlayStyle(alpha, color_table(colormap), dpi)


@dataclass(frozen=True)
class Tile:
    """Pixels, uint8 (height, width, 3), and the position of their upper left corner."""

    x: int
    y: int
    image: Pixels


@dataclass(frozen=True)
class Label:
    """A line of text."""

    x: int
    y: int
    text: str
    width: int
    anchor: str = "line"
    scale: float = 1.0


@dataclass(frozen=True)
class CamSheet:
    """What is drawn on a page, in pixels from the upper left corner."""

    size: tuple[int, int]
    tiles: tuple[Tile, ...]
    labels: tuple[Label, ...]
    font: int
    dpi: int


def paint(sheet: CamSheet) -> Image.Image:
    """Return the sheet as an image."""
    page = Image.new("RGB", sheet.size, PAPER)
    draw = ImageDraw.Draw(page)
    for tile in sheet.tiles:
        page.paste(Image.fromarray(tile.image), (tile.x, tile.y))
    for label in sheet.labels:
        font = _font(round(sheet.font * label.scale))
        text = shortened(label, font.getlength)
        draw.text((label.x, label.y), text, INK, font, anchor=_ANCHORS[label.anchor])
    return page


def _font(size: int) -> ImageFont.FreeTypeFont:
    """The font of the other pictures, which is part of matplotlib; without it, that of pillow."""
    for folder in package_folders("matplotlib"):
        file = Path(folder, "mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
        if file.is_file():
            return ImageFont.truetype(str(file), size)
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))


def shortened(label: Label, width_of: Callable[[str], float]) -> str:
    """Return the text of a label, cut to its width; a cut text ends in dots.

    >>> shortened(Label(0, 0, "a heading", 8), len)
    'a hea...'
    """
    text = label.text
    if width_of(text) <= label.width:
        return text
    # Measuring a text takes long, so not every length is tried.
    lengths = range(1, len(text))
    fitting = bisect_right(lengths, float(label.width), key=lambda n: width_of(f"{text[:n]}..."))
    return f"{text[: max(fitting, 1)]}..."


def wrapped(text: str, width: int, size: int) -> list[str]:
    """Break a text into lines that are no wider than ``width`` in a font of ``size`` pixels.

    >>> wrapped("German shorthaired pointer", 100, 12)
    ['German', 'shorthaired', 'pointer']
    """
    width_of = _font(size).getlength
    room = 0.97 * width  # the letters of matplotlib are a little wider
    lines, line = [], ""
    for piece in re.split(r"(?<=[ _/-])", text):
        if line and width_of((line + piece).rstrip()) > room:
            lines.append(line)
            line = ""
        line += piece
        while width_of(line.rstrip()) > room and len(line) > 1:
            fitting = bisect_right(range(1, len(line)), room, key=lambda n: width_of(line[:n]))
            lines.append(line[: max(fitting, 1)])
            line = line[max(fitting, 1) :]
    return [each.rstrip() for each in (*lines, line)]


def draw_cam(sheet: CamSheet, title: str) -> Drawing:
    """Return the sheet as a drawing of the same size; ``title`` says what it shows."""
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

    width, height = (side / sheet.dpi for side in sheet.size)
    points = 72 / sheet.dpi  # of a pixel
    with paper_style(dark=False):
        figure = Figure(figsize=(width, height), dpi=sheet.dpi)
        for tile in sheet.tiles:
            tall, wide = tile.image.shape[:2]
            box = (tile.x, sheet.size[1] - tile.y - tall, wide, tall)
            panel = add_panel(figure, *(length / sheet.dpi for length in box))
            panel.imshow(tile.image, interpolation="none", aspect="auto")
            panel.set_axis_off()
        for label in sheet.labels:
            font = FontProperties(family=[FONT_FAMILY], size=sheet.font * label.scale * points)
            text = shortened(label, partial(_width_of, font=font, points=points))
            figure.text(
                label.x / sheet.size[0],
                1 - label.y / sheet.size[1],
                escape_text(text),
                va="baseline" if label.anchor == "bottom" else "top",  # of digits
                fontproperties=font,
            )
    return Drawing(figure, "cam", (title,))


def _width_of(text: str, font: FontProperties, points: float) -> float:
    """The width of a text in pixels, each of that many points."""
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), escape_text(text), prop=font).get_extents().width) / points
