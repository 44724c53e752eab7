"""The maps of ``cam`` as a picture: each image of the model's input, and the map over it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from hookscope.files.strict_json import parse_number
from hookscope.hooks.capture import Capture
from hookscope.specs.output_path import MARK
from hookscope.specs.patterns import ROOT
from hookscope.specs.record_kinds import CAM, INPUT
from hookscope.views.images.colors import SEQUENTIAL
from hookscope.views.text.formats import number_text, plural, shape_text

SIDE = 400  # pixels that the longer side of an image has at least
MOST = 16  # images of a batch that are drawn
GAP, BAR, SCALE, LINE = 16, 16, 64, 20  # between parts, the colour bar, its numbers, a line of text
SHARE = 0.65  # of the colour over the grey image
MIDDLE = 127.5  # between black and white
INK, PAPER = "black", "white"

Pixels = NDArray[np.uint8]


def overlay_png(capture: Capture) -> bytes:
    """Return the picture as a PNG file. Its ``Description`` names the method and the layer."""
    info, stream = PngInfo(), io.BytesIO()
    info.add_text("Software", MARK)
    info.add_text("Description", heading(capture.metadata["cam"]))
    draw_overlay(capture).save(stream, "PNG", pnginfo=info)
    return stream.getvalue()


def draw_overlay(capture: Capture) -> Image.Image:
    """Return the picture of what ``hookscope.cam`` returned.

    Each of the first 16 images of the batch has a row: the model's input, the map in colours over
    the image in grey, and a scale from 0 to the map's largest value. The contrast of the grey is
    halved, so that brightness shows the map and not the image. An image is enlarged by an integer
    factor without interpolation.

    Example:
        >>> import hookscope
        >>> shot = hookscope.cam("sample_models/digits.py:trained")
        >>> draw_overlay(shot).size  # two of 8 by 8 pixels, each 50 wide, the scale, text, margins
        (944, 492)
    """
    metadata = capture.metadata["cam"]
    images = capture[_key(capture, INPUT)].permute(0, 2, 3, 1).numpy()
    maps = capture[_key(capture, CAM)].double().numpy()
    rows = [_row(*each) for each in zip(images[:MOST], maps, metadata["images"], strict=False)]
    more = len(images) - len(rows)
    lines = [
        heading(metadata),
        *([f"and {plural(more, 'more image')} in the file"] if more else []),
    ]
    content = _stacked([_text_block(lines, rows[0].width), *rows])
    page = Image.new("RGB", (content.width + 2 * GAP, content.height + 2 * GAP), PAPER)
    page.paste(content, (GAP, GAP))
    return page


def heading(metadata: dict[str, Any]) -> str:
    """Return a line with the method and the layer of a map."""
    if "layer" not in metadata:
        return f"{metadata['method']} at the image"
    return f"{metadata['method']} at {metadata['layer']}, grid {shape_text(metadata['grid'])}"


def _key(capture: Capture, kind: str) -> str:
    return next(r.key for r in capture.records if r.module == ROOT and r.kind == kind)


def _row(image: Pixels, values: NDArray[np.float64], entry: dict[str, Any]) -> Image.Image:
    """One image, the map over it, and the scale."""
    times = max(1, -(-SIDE // max(image.shape[:2])))
    top = float(np.nan_to_num(values, posinf=0).max())
    shares = np.nan_to_num(values / top if top else values).clip(0, 1)
    colors = SEQUENTIAL[(shares * 255).round().astype(np.uint8)]
    grey = np.asarray(Image.fromarray(image).convert("L"), dtype=np.float64)[..., None]
    over = _mixed(colors, MIDDLE + (grey - MIDDLE) / 2)
    left, right = (Image.fromarray(_enlarged(each, times)) for each in (image, over))
    width = left.width + GAP + right.width + GAP + BAR + SCALE
    row = Image.new("RGB", (width, left.height), PAPER)
    row.paste(left, (0, 0))
    row.paste(right, (left.width + GAP, 0))
    _draw_scale(row, left.width + GAP + right.width + GAP, top)
    return _stacked([_text_block(["", caption(entry)], width), row])


def caption(entry: dict[str, Any]) -> str:
    """Return a line with the class of an image, its score and its probability."""
    name = entry["label"] or (
        f"class {entry['index']}" if entry["index"] is not None else "several classes"
    )
    text = f"{entry['word']}: {name}, score {number_text(parse_number(entry['score']))}"
    share = parse_number(entry["probability"])
    return text if share is None else f"{text}, probability {share:.1%}"


def _mixed(colors: Pixels, grey: NDArray[np.float64] | float) -> Pixels:
    return (SHARE * colors + (1 - SHARE) * grey).round().astype(np.uint8)


def _enlarged(pixels: Pixels, times: int) -> Pixels:
    return pixels.repeat(times, 0).repeat(times, 1)


def _draw_scale(row: Image.Image, left: int, top: float) -> None:
    """Draw the colour bar, from 0 at the bottom to the largest value at the top."""
    indices = np.linspace(255, 0, row.height).round().astype(np.uint8)
    bar = np.repeat(_mixed(SEQUENTIAL[indices], MIDDLE)[:, None], BAR, 1)
    row.paste(Image.fromarray(bar), (left, 0))
    draw, font, at = ImageDraw.Draw(row), ImageFont.load_default(14), left + BAR + 4
    draw.text((at, 0), number_text(top, 3), INK, font, anchor="lt")
    draw.text((at, row.height), "0", INK, font, anchor="lb")


def _text_block(lines: list[str], width: int) -> Image.Image:
    """Lines of text. A line that is too long for ``width`` is cut and ends in dots."""
    font = ImageFont.load_default(14)
    page = Image.new("RGB", (width, LINE * len(lines)), PAPER)
    draw = ImageDraw.Draw(page)
    for index, line in enumerate(lines):
        shown = line
        while font.getlength(shown) > width:
            shown = f"{shown[:-4]}..."
        draw.text((0, LINE * index), shown, INK, font)
    return page


def _stacked(parts: list[Image.Image]) -> Image.Image:
    """The parts one below the other."""
    page = Image.new("RGB", (parts[0].width, sum(part.height for part in parts)), PAPER)
    top = 0
    for part in parts:
        page.paste(part, (0, top))
        top += part.height
    return page
