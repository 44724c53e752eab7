"""The image of an input, read again from its file and fitted into a square."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from hookscope.errors import InputError
from hookscope.files.input_list import InputEntry
from hookscope.files.own_folder import why_not_opened


def small_image(
    name: str, sha256: str | None, side: int, places: Sequence[str]
) -> NDArray[np.uint8] | str:
    """Return the pixels, (height, width, 3), with ``side`` pixels on the longer side.

    Only a file in one of the ``places`` is read. Where it cannot be shown, the reason is returned,
    as the end of a sentence.
    """
    if not sha256:
        return "not a file with a hash in the features"
    if why_not_opened(name, *places):
        return "not beside the features folder (name its folder with --input)"
    try:
        data = InputEntry(name, name).read()
    except InputError:
        return "not at its path any more (moved or deleted)"
    if hashlib.sha256(data).hexdigest() != sha256:
        return "changed since the features were extracted"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a picture that is too large to decode safely
            image = ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB")
    except Exception:  # pillow raises many kinds for damaged files
        return "not an image that can be decoded"
    scale = side / max(image.size)
    width, height = (max(round(length * scale), 1) for length in image.size)
    method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return np.asarray(image.resize((width, height), method))
