"""Any image file made into an upright RGB or grey image of 8 bits, as a person would see it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hookscope.errors import InputError
from hookscope.files.file_types import WRITE_AGAIN, describe_bytes, not_an_image
from hookscope.inputs.input_reader import describe_path
from hookscope.specs.model_spec import end_sentence

_BAND = 1 << 20  # pixels


def decode_image(
    data: bytes, word: str, channels: int = 3, at_least: int | None = None
) -> Image.Image:
    """Return the image in ``data`` as RGB (3 channels) or grey (1): the first frame, upright.

    Turned as its EXIF says; what is transparent shows white; 16-bit, 32-bit and floating values are
    scaled to 8 bits instead of cut off.

    Args:
        data: the bytes of a file.
        word: what to call it in an error.
        channels: 3 or 1.
        at_least: let a JPEG be scaled down while it is decoded, its shorter side to no less than
            this many pixels; None for all that is there.

    Raises:
        InputError: it is no image, is cut off, or too large to be opened safely.
    """
    with _blaming(word, data), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pillow's remarks on odd metadata
        image: Image.Image = Image.open(io.BytesIO(data))
        if image.format == "EPS":
            raise InputError("It is PostScript, and no program in a file is run.", "Convert it.")
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return _opaque(_eight_bit(image), "RGB" if channels == 3 else "L")


def _bands(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """Yield boxes that cover an image from top to bottom, a million pixels each or one row.

    What is computed of one at a time takes little memory beside the image and the result, which
    for the largest images that are opened are gigabytes.
    """
    width, height = image.size
    rows = max(_BAND // max(width, 1), 1)
    for top in range(0, height, rows):
        yield 0, top, width, min(top + rows, height)


def _opaque(image: Image.Image, mode: str) -> Image.Image:
    """The image in a mode without transparency, over white."""
    if not image.has_transparency_data:
        return image if image.mode == mode else image.convert(mode)
    made = Image.new(mode, image.size)
    for box in _bands(image):
        layer = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        made.paste(Image.alpha_composite(white, layer).convert(mode), box)
    return made


def _eight_bit(image: Image.Image) -> Image.Image:
    """The image itself, or grey of 8 bits where its mode holds more than pillow would keep."""
    if not image.mode.startswith(("I", "F")):
        return image

    def values_of(box: tuple[int, int, int, int]) -> NDArray[np.float64]:
        return np.asarray(image.crop(box)).astype(np.float64)

    extremes = [(part.min(), part.max()) for part in map(values_of, _bands(image))]
    if not np.isfinite(extremes).all():
        raise InputError("It holds NaN or infinite pixels.", "Replace them before the run.")
    if image.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    else:  # the file does not say its range: take the narrowest usual one that holds the values
        low = min(0.0, *(float(least) for least, _ in extremes))
        top = max(float(most) for _, most in extremes)
        usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
        high = next((bound for bound in usual if top <= bound), top)
    made = Image.new("L", image.size)
    for box in _bands(image):
        scaled = (values_of(box) - low) / (high - low) * 255
        made.paste(Image.fromarray(np.rint(scaled).astype(np.uint8), mode=None), box)
    return made


@contextmanager
def _blaming(word: str, data: bytes) -> Iterator[None]:
    """Turn whatever a decoder raises into one sentence about the file."""
    try:
        yield
    except UnidentifiedImageError as exc:
        raise not_an_image(describe_path(word), describe_bytes(data)) from exc
    except Image.DecompressionBombError as exc:
        raise InputError(
            f"{describe_path(word)} unpacks to a suspicious size: {exc}", "Scale it down first."
        ) from exc
    except InputError as exc:
        raise InputError(f"{describe_path(word)} cannot be used. {exc.message}", exc.hint) from exc
    except Exception as exc:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        raise InputError(
            f"{describe_path(word)} is damaged or cut off: {end_sentence(str(exc))}", WRITE_AGAIN
        ) from exc
