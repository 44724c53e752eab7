"""The picture of the maps of ``cam`` as a sheet: where each image, text and colour bar is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from hookscope.errors import RequestError
from hookscope.files.optional_packages import package_folders
from hookscope.files.strict_json import parse_number
from hookscope.files.words import number_text, plural, shape_text
from hookscope.results.metadata import CamImage, CamMetadata
from hookscope.specs.cam_methods import AT_INPUT, METHODS
from hookscope.specs.choices import DPI, MAX_DPI, MIN_DPI, OVERLAY_ALPHA
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import CAM, INPUT
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.images import require_matplotlib
from hookscope.views.images.colors import (
    INFINITE,
    NAN,
    RGB,
    SEQUENTIAL,
    nonfinite_text,
    percentile_bound,
)
from hookscope.views.images.figures.canvas import color_table, escape_text
from hookscope.views.images.figures.drawing import (
    FONT_FAMILY,
    Drawing,
    paper_style,
    recording_caption,
)
from hookscope.views.images.figures.grid import add_panel

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties

BASE_DPI = 150  # of the lengths below, which are in pixels; whatever the default is
SIDE = 400  # that the longer side of an image has at least
GAP, BAR, SCALE, LINE = 16, 16, 64, 20  # between parts, the colour bar, its numbers, a line of text
FONT = 14
TITLE = 1.4  # size of the title, as a multiple of that of the text
MOST = 16  # images of a batch that are drawn
MIDDLE = 127.5  # between black and white
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


def sheet_of(capture: CaptureFile, style: OverlayStyle) -> CamSheet:
    """Return the sheet of a result of ``cam``."""
    keys = {record.kind: record.key for record in capture.records if record.module == ROOT}
    if "cam" not in capture.metadata or not {INPUT, CAM} <= keys.keys():
        raise RequestError(
            "This capture is not a result of cam: it has no map with its images.",
            "Draw what hookscope.cam returned. hookscope.plot draws other captures.",
        )
    images = np.moveaxis(capture.tensor(keys[INPUT]), 1, -1)
    return lay_out(images, capture.tensor(keys[CAM]), capture.metadata, style)


def lay_out(
    images: Pixels, maps: NDArray[Any], metadata: dict[str, Any], style: OverlayStyle
) -> CamSheet:
    """Return the sheet of a batch: for each of the first images the input, its map and a scale."""
    gap, line = style.pixels(GAP), style.pixels(LINE)
    count = min(len(images), MOST)
    times = max(1, -(-style.pixels(SIDE) // max(images.shape[1:3])))
    height, width = images.shape[1] * times, images.shape[2] * times
    bar_x = gap + 2 * (width + gap)
    right = bar_x + style.pixels(BAR + SCALE)
    cam = metadata["cam"]
    # The inputs are named above their images.
    lines = [recording_caption({**metadata, "inputs": ()})]
    lines += filter(None, [nonfinite_text(maps[:count])])
    if len(images) > count:
        lines.append(f"and {plural(len(images) - count, 'more image')} in the file")
    tiles: list[Tile] = []
    labels = [Label(gap, gap, heading(cam), right - gap, scale=TITLE)]
    y = gap + round(line * TITLE)
    labels += [Label(gap, y + line * i, text, right - gap) for i, text in enumerate(lines)]
    y += line * len(lines)
    for n in range(count):
        y += line  # an empty one
        values = maps[n].astype(np.float64)
        low, top = _scale(values, cam, n)
        labels.append(Label(gap, y, caption(cam["images"][n]), right - gap))
        y += line
        labels.append(Label(gap, y, "input", width))
        labels.append(Label(gap * 2 + width, y, "map over the input", width))
        y += line
        over = _enlarged(_over(images[n], values, (low, top), style), times)
        tiles += [Tile(gap, y, _enlarged(images[n], times)), Tile(gap * 2 + width, y, over)]
        tiles.append(Tile(bar_x, y, _color_bar(height, style)))
        at = bar_x + style.pixels(BAR + 4)
        labels.append(Label(at, y, number_text(top, 3), right - at, "top"))
        labels.append(Label(at, y + height, number_text(low, 3), right - at, "bottom"))
        y += height
    size = (right + gap, y + gap)
    return CamSheet(size, tuple(tiles), tuple(labels), style.pixels(FONT), style.dpi)


def _at_input(metadata: CamMetadata) -> bool:
    return METHODS[metadata["method"]].source == AT_INPUT


def _scale(values: NDArray[np.float64], cam: CamMetadata, n: int) -> tuple[float, float]:
    """The values at both ends of the colours of image ``n``."""
    finite = values[np.isfinite(values)]
    if _at_input(cam):
        return 0.0, percentile_bound(values)
    if not finite.size:
        return 0.0, 0.0
    if "layers" in cam:  # a rollout, which is of several layers
        return float(finite.min()), float(finite.max())
    # Between the cells of the grid, the map at the size of the image may be smaller throughout.
    largest = parse_number(cam["images"][n]["largest"])
    if largest is None or not np.isfinite(largest):
        largest = finite.max()
    return 0.0, float(largest)


def heading(metadata: CamMetadata) -> str:
    """Return a line with the method and the layer of a map, and the end of its colours."""
    if _at_input(metadata):
        return f"{metadata['method']} at the image; colours end at the map's 99th percentile"
    if "grid" not in metadata:
        return f"{metadata['method']} at the image"
    grid = f"grid {shape_text(metadata['grid'])}"
    if "layers" in metadata:
        return f"{metadata['method']} of {plural(len(metadata['layers']), 'layer')}, {grid}"
    return f"{metadata['method']} at {metadata['layer']}, {grid}"


def caption(entry: CamImage) -> str:
    """Return a line with the class of an image, its score and its probability."""
    number = "several classes" if entry["index"] is None else f"class {entry['index']}"
    name = entry["label"] or number
    text = f"{entry['spec']}: {name}, score {number_text(parse_number(entry['score']))}"
    share = parse_number(entry["probability"])
    if share is None:
        return text
    return f"{text}, probability {number_text(share) if share != share else f'{share:.1%}'}"


def _over(
    image: Pixels, values: NDArray[np.float64], scale: tuple[float, float], style: OverlayStyle
) -> Pixels:
    """The map in colours over the image in grey."""
    low, top = scale
    shares = (values - low) / (top - low) if top > low else np.zeros_like(values)
    shares = np.nan_to_num(shares).clip(0, 1)
    colors = style.table[(shares * 255).round().astype(np.uint8)]
    grey = np.asarray(Image.fromarray(image).convert("L"), dtype=np.float64)[..., None]
    pixels = _mixed(colors, MIDDLE + (grey - MIDDLE) / 2, style)
    pixels[np.isinf(values)] = INFINITE
    pixels[np.isnan(values)] = NAN
    return pixels


def _mixed(colors: Pixels, grey: NDArray[np.float64] | float, style: OverlayStyle) -> Pixels:
    return (style.alpha * colors + (1 - style.alpha) * grey).round().astype(np.uint8)


def _color_bar(height: int, style: OverlayStyle) -> Pixels:
    """The colours from the lower end of the scale at the bottom to the upper one at the top."""
    indices = np.linspace(255, 0, height).round().astype(np.uint8)
    return np.repeat(_mixed(style.table[indices], MIDDLE, style)[:, None], style.pixels(BAR), 1)


def _enlarged(pixels: Pixels, times: int) -> Pixels:
    return pixels.repeat(times, 0).repeat(times, 1)


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
