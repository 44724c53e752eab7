"""What ``cam`` found as a picture: each image as the model saw it, and the map over it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from hookscope.files.strict_json import parse_number
from hookscope.hooks.capture import Capture
from hookscope.results.module_tree import ROOT
from hookscope.specs.output_path import MARK
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
    """Return the picture as a PNG file, whose ``Description`` says what was computed."""
    info, stream = PngInfo(), io.BytesIO()
    info.add_text("Software", MARK)
    info.add_text("Description", heading(capture.metadata["cam"]))
    draw_overlay(capture).save(stream, "PNG", pnginfo=info)
    return stream.getvalue()


def draw_overlay(capture: Capture) -> Image.Image:
    """Return the picture of what ``hookscope.cam`` returned.

    Each image of the batch, the first 16 at most, has a row: what the model saw, the map's colours
    over its grey, and their scale, from 0 to the map's largest value. The grey is flattened and the
    scale mixed with its middle, so that brightness means the map and not the image. An image is
    enlarged a whole number of times, pixel by pixel.

    Example:
        >>> import hookscope
        >>> shot = hookscope.cam("sample_models/digits.py:trained")
        >>> picture(shot).size  # two of 8 by 8 pixels, each 50 wide, the scale, text, margins
        (944, 492)
    """
    told = capture.metadata["cam"]
    images = capture[_key(capture, INPUT)].permute(0, 2, 3, 1).numpy()
    maps = capture[_key(capture, CAM)].double().numpy()
    rows = [_row(*each) for each in zip(images[:MOST], maps, told["images"], strict=False)]
    more = len(images) - len(rows)
    lines = [heading(told), *([f"and {plural(more, 'image')} more in the file"] if more else [])]
    head = _written(lines, rows[0].width)
    whole = _stacked([head, *rows])
    page = Image.new("RGB", (whole.width + 2 * GAP, whole.height + 2 * GAP), PAPER)
    page.paste(whole, (GAP, GAP))
    return page


def heading(told: dict[str, Any]) -> str:
    """Return one line that says what the map is."""
    if "layer" not in told:
        return f"{told['method']} at the image"
    return f"{told['method']} at {told['layer']}, grid {shape_text(told['grid'])}"


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
    return _stacked([_written(["", caption(entry)], width), row])


def caption(entry: dict[str, Any]) -> str:
    """Return one line that says of one image which class it was, and how sure the model is."""
    name = entry["label"] or (
        f"class {entry['index']}" if entry["index"] is not None else "several classes"
    )
    told = f"{entry['word']}: {name}, score {number_text(parse_number(entry['score']))}"
    share = parse_number(entry["probability"])
    return told if share is None else f"{told}, probability {share:.1%}"


def _mixed(colors: Pixels, grey: NDArray[np.float64] | float) -> Pixels:
    return (SHARE * colors + (1 - SHARE) * grey).round().astype(np.uint8)


def _enlarged(pixels: Pixels, times: int) -> Pixels:
    return pixels.repeat(times, 0).repeat(times, 1)


def _draw_scale(row: Image.Image, left: int, top: float) -> None:
    """The colours from below to above, with 0 and the largest value beside them."""
    places = np.linspace(255, 0, row.height).round().astype(np.uint8)
    bar = np.repeat(_mixed(SEQUENTIAL[places], MIDDLE)[:, None], BAR, 1)
    row.paste(Image.fromarray(bar), (left, 0))
    draw, font, at = ImageDraw.Draw(row), ImageFont.load_default(14), left + BAR + 4
    draw.text((at, 0), number_text(top, 3), INK, font, anchor="lt")
    draw.text((at, row.height), "0", INK, font, anchor="lb")


def _written(lines: list[str], width: int) -> Image.Image:
    """Lines of text; what is too long for ``width`` ends in dots."""
    font = ImageFont.load_default(14)
    page = Image.new("RGB", (width, LINE * len(lines)), PAPER)
    draw = ImageDraw.Draw(page)
    for number_, line in enumerate(lines):
        shown = line
        while font.getlength(shown) > width:
            shown = f"{shown[:-4]}..."
        draw.text((0, LINE * number_), shown, INK, font)
    return page


def _stacked(parts: list[Image.Image]) -> Image.Image:
    """The parts one below the other."""
    page = Image.new("RGB", (parts[0].width, sum(part.height for part in parts)), PAPER)
    below = 0
    for part in parts:
        page.paste(part, (0, below))
        below += part.height
    return page
