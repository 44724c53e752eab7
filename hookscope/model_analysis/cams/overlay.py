"""The maps of ``cam`` as a picture: each image of the model's input, and the map over it."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hookscope.errors import RequestError
from hookscope.files import atomic_files
from hookscope.files.optional_packages import require_nibabel
from hookscope.files.output_path import (
    JPEG_OPTIONS,
    MARK,
    NPY,
    VOLUMES,
    map_or_picture_ending,
)
from hookscope.hooks.capture import Capture
from hookscope.specs.choices import DPI, OVERLAY_ALPHA
from hookscope.views.images import require_matplotlib
from hookscope.views.images.cam_picture import heading, sheet_of
from hookscope.views.images.cam_sheet import OverlayStyle, draw_cam, overlay_style, paint


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
        (960, 540)
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
    """Write the picture of ``draw_overlay`` to a file; return the file's size in bytes.

    To ``.npy`` the maps at the size of the input are written, (N, *size). To ``.nii`` or
    ``.nii.gz`` the map of a volume is, (D, H, W), or (D, H, W, N) of several. The axes are those of
    the model's input and the affine is the identity: the voxels' size is not known.
    """
    check_map_format(capture, path)
    return write_overlay(capture, path, overlay_style(alpha, colormap, dpi))


def write_overlay(capture: Capture, path: str | os.PathLike[str], style: OverlayStyle) -> int:
    """Do what ``save_overlay`` does, in a style that is checked already."""
    ending = map_or_picture_ending(Path(path))
    if ending == NPY or ending in VOLUMES:
        return _write_map(capture, Path(path), ending)
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


def check_map_format(capture: Capture, path: str | os.PathLike[str]) -> None:
    """Raise RequestError for a NIfTI file of a map that is not of a volume."""
    kind = capture.metadata.get("cam", {}).get("input", "image")
    if map_or_picture_ending(Path(path)) in VOLUMES and kind != "volume":
        raise RequestError(
            f"A NIfTI file is for volumes, and this map is of {'an' * (kind == 'image') or 'a'}"
            f" {kind}.",
            f"Use {NPY}, or a picture.",
        )


def _write_map(capture: Capture, path: Path, ending: str) -> int:
    """Write the maps at the size of the input as an array; return the size of the file."""
    maps = capture["./cam"].numpy()
    if ending == NPY:
        stream = io.BytesIO()
        np.save(stream, maps, allow_pickle=False)
        return atomic_files.write_bytes(path, stream.getvalue())
    require_nibabel()
    import nibabel

    volume = np.moveaxis(maps, 0, -1) if len(maps) > 1 else maps[0]
    image = nibabel.Nifti1Image(volume, np.eye(4))
    image.header["descrip"] = MARK
    content = image.to_bytes()
    # No time in the header, so that the same command writes the same bytes.
    return atomic_files.write_bytes(
        path, gzip.compress(content, mtime=0) if ending == VOLUMES[1] else content
    )
