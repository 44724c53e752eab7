"""What the picture of a result of ``cam`` shows: images, slices of volumes, or signals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hookscope.errors import RequestError
from hookscope.files.strict_json import parse_number
from hookscope.files.words import number_text, plural, shape_text
from hookscope.results.metadata import CamImage, CamMetadata
from hookscope.specs.cam_methods import AT_INPUT, METHODS
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import CAM, INPUT
from hookscope.stores.capture_file import CaptureFile
from hookscope.views.images.cam_sheet import (
    BAR,
    FONT,
    GAP,
    LINE,
    SCALE,
    SIDE,
    TITLE,
    CamSheet,
    Label,
    OverlayStyle,
    Pixels,
    Tile,
)
from hookscope.views.images.colors import INFINITE, NAN, nonfinite_text, percentile_bound
from hookscope.views.images.figures.drawing import recording_caption

MOST = {"image": 16, "volume": 4, "signal": 16}  # inputs of a batch that are drawn
MIDDLE = 127.5  # between black and white
CURVES = 8  # channels of a signal that are drawn
STRIP = 0.3  # height of the map's curve, as a part of a signal's picture
MARGIN = 0.08  # above and below a curve, as a part of its height
DARK, LIGHT = (0, 0, 0), (255, 225, 0)  # of the frame of a box
SIDES = ("depth", "height", "width")
SLICE = 260  # pixels of a side of the square around a slice, at 150 dots per inch
AROUND = 235  # grey beside a slice

Values = NDArray[np.float64]
Scale = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """A picture and the name above it."""

    name: str
    image: Pixels


@dataclass(frozen=True)
class Panels:
    """Pictures of one size in rows with one scale of colours, and the line above them."""

    caption: str
    scale: Scale
    rows: tuple[tuple[Panel, ...], ...]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of each picture."""
        height, width, _ = self.rows[0][0].image.shape
        return height, width


def sheet_of(capture: CaptureFile, style: OverlayStyle) -> CamSheet:
    """Return the sheet of a result of ``cam``."""
    keys = {record.kind: record.key for record in capture.records if record.module == ROOT}
    if "cam" not in capture.metadata or not {INPUT, CAM} <= keys.keys():
        raise RequestError(
            "This capture is not a result of cam: it has no map with its images.",
            "Draw what hookscope.cam returned. hookscope.plot draws other captures.",
        )
    inputs, maps = capture.tensor(keys[INPUT]), capture.tensor(keys[CAM])
    return lay_out(inputs, maps, capture.metadata, style)


def lay_out(
    inputs: NDArray[Any], maps: NDArray[Any], metadata: dict[str, Any], style: OverlayStyle
) -> CamSheet:
    """Return the sheet of a batch: for each of the first inputs pictures, its map and a scale."""
    gap, line = style.pixels(GAP), style.pixels(LINE)
    cam: CamMetadata = metadata["cam"]
    kind = cam.get("input", "image")
    count = min(len(inputs), MOST[kind])
    rows = [_panels(kind, inputs[n], maps[n], cam, n, style) for n in range(count)]
    bar_x = gap + max(len(row.rows[0]) * (row.size[1] + gap) for row in rows)
    right = bar_x + style.pixels(BAR + SCALE)
    # The inputs are named above their images.
    lines = [recording_caption({**metadata, "inputs": ()})]
    lines += filter(None, [nonfinite_text(maps[:count])])
    if len(inputs) > count:
        lines.append(f"and {plural(len(inputs) - count, f'more {kind}')} in the file")
    labels = [Label(gap, gap, heading(cam), right - gap, scale=TITLE)]
    y = gap + round(line * TITLE)
    labels += [Label(gap, y + line * i, text, right - gap) for i, text in enumerate(lines)]
    y += line * len(lines)
    tiles: list[Tile] = []
    for row in rows:
        y += line  # an empty one
        y = _place(row, y, bar_x, right, style, tiles, labels)
    size = (right + gap, y + gap)
    return CamSheet(size, tuple(tiles), tuple(labels), style.pixels(FONT), style.dpi)


def _place(
    row: Panels,
    y: int,
    bar_x: int,
    right: int,
    style: OverlayStyle,
    tiles: list[Tile],
    labels: list[Label],
) -> int:
    """Add the tiles and the labels of an input that begin at ``y``; return where they end."""
    gap, line = style.pixels(GAP), style.pixels(LINE)
    height, width = row.size
    labels.append(Label(gap, y, row.caption, right - gap))
    top, end = y + 2 * line, y + line - gap // 2
    for panels in row.rows:
        start = end + gap // 2
        for n, panel in enumerate(panels):
            x = gap + n * (width + gap)
            labels.append(Label(x, start, panel.name, width))
            tiles.append(Tile(x, start + line, panel.image))
        end = start + line + height
    tiles.append(Tile(bar_x, top, _color_bar(end - top, style)))
    at = bar_x + style.pixels(BAR + 4)
    low, high = row.scale
    labels.append(Label(at, top, number_text(high, 3), right - at, "top"))
    labels.append(Label(at, end, number_text(low, 3), right - at, "bottom"))
    return end


def _panels(
    kind: str,
    values: NDArray[Any],
    maps: NDArray[Any],
    cam: CamMetadata,
    n: int,
    style: OverlayStyle,
) -> Panels:
    """The pictures of an input: pixels (3, *size) of an image or volume, a signal (C, L); a map."""
    heat = maps.astype(np.float64)
    scale = _scale(heat, cam, n)
    entry = cam["images"][n]
    if kind == "volume":
        places = [("middle", [side // 2 for side in heat.shape])]
        if entry["pixel"] is not None:
            places.append(("largest value", entry["pixel"]))
        slices = _slices(np.moveaxis(values, 0, -1), heat, places, scale, style)
        return Panels(caption(entry), scale, tuple(zip(*slices, strict=True)))
    if kind == "signal":
        name = "the signal over the map, and below it the map"
        if len(values) > CURVES:
            name = f"the first {CURVES} of {len(values)} channels over the map, and the map"
        return Panels(caption(entry), scale, ((Panel(name, _signal(values, heat, scale, style)),),))
    image = np.moveaxis(values, 0, -1)
    return Panels(caption(entry), scale, (_image(image, heat, scale, style, entry.get("box")),))


def _image(
    image: Pixels, heat: Values, scale: Scale, style: OverlayStyle, box: list[float] | None
) -> tuple[Panel, ...]:
    times = max(1, -(-style.pixels(SIDE) // max(heat.shape)))
    pictures = {"input": image, "map over the input": _over(image, heat, scale, style)}
    return tuple(
        Panel(name, _framed(_enlarged(pixels, times), box, times, style))
        for name, pixels in pictures.items()
    )


def _framed(pixels: Pixels, box: list[float] | None, times: int, style: OverlayStyle) -> Pixels:
    """The picture with the box around an object, light in dark, which is seen on any image."""
    if box is None:
        return pixels
    page = Image.fromarray(pixels)
    draw = ImageDraw.Draw(page)
    width = style.pixels(2)
    left, top, right, bottom = (round(edge * times) for edge in box)
    left, right = sorted((left, right))
    top, bottom = sorted((top, bottom))
    draw.rectangle([left, top, right, bottom], outline=DARK, width=3 * width)
    low, high = (left + width, top + width), (right - width, bottom - width)
    draw.rectangle([low, (max(low[0], high[0]), max(low[1], high[1]))], outline=LIGHT, width=width)
    return np.asarray(page)


def _slices(
    volume: Pixels,
    heat: Values,
    places: list[tuple[str, list[int]]],
    scale: Scale,
    style: OverlayStyle,
) -> Iterator[tuple[Panel, Panel]]:
    """The three slices through each position, each with the map over it, in equal squares."""
    square = max(style.pixels(SLICE), *heat.shape)
    for name, place in places:
        for axis, (side, index) in enumerate(zip(SIDES, place, strict=True)):
            pixels, values = (np.moveaxis(every, axis, 0)[index] for every in (volume, heat))
            over = _over(pixels, values, scale, style)
            yield (
                Panel(f"{name}: {side} {index}", _fitted(pixels, square)),
                Panel("map over it", _fitted(over, square)),
            )


def _fitted(pixels: Pixels, side: int) -> Pixels:
    """The picture, as large as fits, in the middle of a square."""
    shape = pixels.shape[:2]
    height, width = (max(1, round(n * side / max(shape))) for n in shape)
    page = np.full((side, side, 3), AROUND, np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    rows, columns = np.arange(height) * shape[0] // height, np.arange(width) * shape[1] // width
    page[top : top + height, left : left + width] = pixels[np.ix_(rows, columns)]
    return page


def _signal(signal: NDArray[Any], heat: Values, scale: Scale, style: OverlayStyle) -> Pixels:
    """A signal (C, L) as lines over the colours of its map, and below them the map as a line."""
    width, height = style.pixels(2 * SIDE), style.pixels(SIDE * 0.75)
    strip = round(height * STRIP)
    columns = np.arange(width) * len(heat) // width
    colors = _over(np.full((1, len(heat), 3), 255, np.uint8), heat[None], scale, style)[0]
    pixels = np.full((height, width, 3), 255, np.uint8)
    pixels[: height - strip] = colors[columns]
    page = Image.fromarray(pixels)
    draw = ImageDraw.Draw(page)
    shown = signal[:CURVES].astype(np.float64)
    finite = shown[np.isfinite(shown)]
    bounds = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    for channel in shown:
        _curve(draw, channel, bounds, (0, height - strip), width, style)
    _curve(draw, heat, scale, (height - strip, height), width, style)
    draw.line([(0, height - strip), (width, height - strip)], "black")
    return np.asarray(page)


def _curve(
    draw: ImageDraw.ImageDraw,
    values: Values,
    bounds: Scale,
    rows: tuple[int, int],
    width: int,
    style: OverlayStyle,
) -> None:
    """Draw values as a line between two rows of pixels; it has gaps where they are not finite."""
    low, high = bounds
    top, bottom = rows
    shares = (values - low) / (high - low) if high > low else np.full(values.shape, 0.5)
    room = bottom - top
    y = bottom - room * (MARGIN + (1 - 2 * MARGIN) * shares.clip(0, 1))
    x = (np.arange(len(values)) + 0.5) * width / len(values)
    good = np.isfinite(y)
    for start in np.flatnonzero(good & ~np.r_[False, good[:-1]]):
        stop = start + int(np.argmin(np.r_[good[start:], False]))
        points = list(zip(x[start:stop].tolist(), y[start:stop].tolist(), strict=True))
        draw.line(points, "black", style.pixels(2))


def _at_input(metadata: CamMetadata) -> bool:
    return METHODS[metadata["method"]].source == AT_INPUT


def _scale(values: Values, cam: CamMetadata, n: int) -> Scale:
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
    place = f"the {metadata.get('input', 'image')}"
    if _at_input(metadata):
        return f"{metadata['method']} at {place}; colours end at the map's 99th percentile"
    if "grid" not in metadata:
        return f"{metadata['method']} at {place}"
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


def _over(image: Pixels, values: Values, scale: Scale, style: OverlayStyle) -> Pixels:
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


def _mixed(colors: Pixels, grey: Values | float, style: OverlayStyle) -> Pixels:
    return (style.alpha * colors + (1 - style.alpha) * grey).round().astype(np.uint8)


def _color_bar(height: int, style: OverlayStyle) -> Pixels:
    """The colours from the lower end of the scale at the bottom to the upper one at the top."""
    indices = np.linspace(255, 0, height).round().astype(np.uint8)
    return np.repeat(_mixed(style.table[indices], MIDDLE, style)[:, None], style.pixels(BAR), 1)


def _enlarged(pixels: Pixels, times: int) -> Pixels:
    return pixels.repeat(times, 0).repeat(times, 1)
