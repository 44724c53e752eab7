"""The maps of ``cam`` as a picture: each image of the model's input, and the map over it."""

from __future__ import annotations

import io
import os
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hookscope.files import atomic_files
from hookscope.files.output_path import JPEG_OPTIONS, MARK, picture_ending
from hookscope.hooks.capture import Capture
from hookscope.specs.choices import DPI, OVERLAY_ALPHA
from hookscope.views.images import require_matplotlib
from hookscope.views.images.cam_sheet import (
    OverlayStyle,
    draw_cam,
    heading,
    overlay_style,
    paint,
    sheet_of,
)


def draw_overlay(
    capture: Capture,
    *,
    alpha: float = OVERLAY_ALPHA,
    colormap: str | None = None,
    dpi: int = DPI,
) -> Image.Image:
    """Return the picture of what ``hookscope.cam`` returned.

    Each of the first 16 images of the batch has a row: the model's input, the map in colours over
    the image in grey, and a scale. It begins at 0, and ends at the map's largest value or, for
    gradients at the image, at its 99th percentile, which the heading says.

    Example:
        >>> import hookscope
        >>> shot = hookscope.cam("sample_models/digits.py:trained")
        >>> draw_overlay(shot).size  # two of 8 by 8 pixels, each 50 wide, the scale, text, margins
        (944, 540)
    """
    return paint(sheet_of(capture.reader(), overlay_style(alpha, colormap, dpi)))


def save_overlay(
    capture: Capture,
    path: str | os.PathLike[str],
    *,
    alpha: float = OVERLAY_ALPHA,
    colormap: str | None = None,
    dpi: int = DPI,
) -> int:
    """Write the picture of ``draw_overlay`` to a file; return the file's size in bytes."""
    return write_overlay(capture, path, overlay_style(alpha, colormap, dpi))


def write_overlay(capture: Capture, path: str | os.PathLike[str], style: OverlayStyle) -> int:
    """Do what ``save_overlay`` does, in a style that is checked already."""
    ending = picture_ending(Path(path))
    sheet = sheet_of(capture.reader(), style)
    title = heading(capture.metadata["cam"])
    if ending in (".svg", ".pdf"):
        require_matplotlib()
        return draw_cam(sheet, title).save(path, style.dpi)
    stream, page, dpi = io.BytesIO(), paint(sheet), (style.dpi, style.dpi)
    if ending == ".png":
        info = PngInfo()
        info.add_text("Software", MARK)
        info.add_text("Description", title)
        page.save(stream, "PNG", pnginfo=info, dpi=dpi)
    else:
        page.save(stream, "JPEG", dpi=dpi, **JPEG_OPTIONS)
    return atomic_files.write_bytes(path, stream.getvalue())
