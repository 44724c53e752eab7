"""The maps of ``cam`` as a picture: each image of the model's input, and the map over it."""

from __future__ import annotations

import io
import os
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hookscope.files import atomic_files
from hookscope.hooks.capture import Capture
from hookscope.specs.output_path import MARK, picture_ending
from hookscope.specs.patterns import ROOT
from hookscope.specs.record_kinds import CAM, INPUT
from hookscope.views.images import require_matplotlib
from hookscope.views.images.cam_sheet import (
    ALPHA,
    BASE_DPI,
    CamSheet,
    heading,
    lay_out,
    overlay_style,
    paint,
)

JPEG_QUALITY = 95


def draw_overlay(
    capture: Capture,
    *,
    alpha: float = ALPHA,
    colormap: str | None = None,
    dpi: int = BASE_DPI,
) -> Image.Image:
    """Return the picture of what ``hookscope.cam`` returned.

    Each of the first 16 images of the batch has a row: the model's input, the map in colours over
    the image in grey, and a scale. It begins at 0, and ends at the map's largest value or, for
    gradients at the image, at its 99th percentile, which the heading says. The contrast of the grey
    is halved, so that brightness shows the map and not the image. An image is enlarged by an
    integer factor without interpolation.

    Args:
        capture: what ``hookscope.cam`` returned; it is not changed.
        alpha: opacity of the map over the image, 0 to 1.
        colormap: name of a colour map of matplotlib; None for hookscope's own.
        dpi: pixels per inch. An image has at least 2.7 inches.

    Raises:
        RequestError: ``alpha`` is outside 0 to 1, or there is no such colour map.
        EnvironmentFault: a colour map is named, and matplotlib is not installed.

    Example:
        >>> import hookscope
        >>> shot = hookscope.cam("sample_models/digits.py:trained")
        >>> draw_overlay(shot).size  # two of 8 by 8 pixels, each 50 wide, the scale, text, margins
        (944, 512)
    """
    return paint(_sheet_of(capture, alpha, colormap, dpi))


def save_overlay(
    capture: Capture,
    path: str | os.PathLike[str],
    *,
    alpha: float = ALPHA,
    colormap: str | None = None,
    dpi: int = BASE_DPI,
) -> int:
    """Write the picture of ``draw_overlay`` to a file; return the file's size in bytes.

    Args:
        capture: what ``hookscope.cam`` returned.
        path: ending in the format: ``.png``, ``.jpg``, ``.jpeg``, ``.svg`` or ``.pdf``. The last
            two need matplotlib.
        alpha, colormap, dpi: see ``draw_overlay``.

    Raises:
        RequestError: ``path`` has another ending, or as for ``draw_overlay``.
        EnvironmentFault: matplotlib is needed, and not installed.
        StoreError: the file cannot be written. An existing file is then unchanged.
    """
    ending = picture_ending(Path(path))
    sheet = _sheet_of(capture, alpha, colormap, dpi)
    title = heading(capture.metadata["cam"])
    if ending in (".svg", ".pdf"):
        with require_matplotlib():
            from hookscope.views.images.figures.cam_figure import draw_cam
        return draw_cam(sheet, title).save(path, dpi)
    stream, page = io.BytesIO(), paint(sheet)
    if ending == ".png":
        info = PngInfo()
        info.add_text("Software", MARK)
        info.add_text("Description", title)
        page.save(stream, "PNG", pnginfo=info, dpi=(dpi, dpi))
    else:
        page.save(
            stream,
            "JPEG",
            quality=JPEG_QUALITY,
            subsampling=0,
            comment=MARK.encode(),
            dpi=(dpi, dpi),
        )
    return atomic_files.write_bytes(path, stream.getvalue())


def _sheet_of(capture: Capture, alpha: float, colormap: str | None, dpi: int) -> CamSheet:
    style = overlay_style(alpha, colormap, dpi)
    images = capture[_key(capture, INPUT)].permute(0, 2, 3, 1).numpy()
    maps = capture[_key(capture, CAM)].numpy()
    return lay_out(images, maps, capture.metadata, style)


def _key(capture: Capture, kind: str) -> str:
    return next(r.key for r in capture.records if r.module == ROOT and r.kind == kind)
