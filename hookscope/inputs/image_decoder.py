"""Decode image files to upright RGB or grey images of 8 bits, as an image viewer shows them."""

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

_BAND_PIXELS = 1 << 20


def decode_image(
    data: bytes, path: str, channels: int = 3, at_least: int | None = None
) -> Image.Image:
    """Return the first frame as RGB (3 channels) or grey (1), upright, on white, in 8 bits."""
    with _decoder_errors(path, data), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pillow's remarks on odd metadata
        image: Image.Image = Image.open(io.BytesIO(data))
        if image.format == "EPS":
            raise InputError(
                "It is PostScript, a program that hookscope does not run.", "Convert it to PNG."
            )
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return _opaque(_eight_bit(image), "RGB" if channels == 3 else "L")


def _bands(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """Yield boxes of a million pixels or one row each: the largest images take gigabytes."""
    width, height = image.size
    rows = max(_BAND_PIXELS // max(width, 1), 1)
    for top in range(0, height, rows):
        yield 0, top, width, min(top + rows, height)


def _opaque(image: Image.Image, mode: str) -> Image.Image:
    """The image in ``mode``; transparent pixels are blended with white."""
    if not image.has_transparency_data:
        return image if image.mode == mode else image.convert(mode)
    opaque = Image.new(mode, image.size)
    for box in _bands(image):
        layer = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        opaque.paste(Image.alpha_composite(white, layer).convert(mode), box)
    return opaque


def _eight_bit(image: Image.Image) -> Image.Image:
    """The image, or a grey image of 8 bits if its mode has more bits, which pillow would clip."""
    if not image.mode.startswith(("I", "F")):
        return image

    def values_of(box: tuple[int, int, int, int]) -> NDArray[np.float64]:
        return np.asarray(image.crop(box)).astype(np.float64)

    extremes = [(part.min(), part.max()) for part in map(values_of, _bands(image))]
    if not np.isfinite(extremes).all():
        raise InputError("It contains NaN or infinite pixels.", "Replace them before the run.")
    if image.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    else:  # the range is unknown: take the narrowest usual one that contains the values
        low = min(0.0, *(float(minimum) for minimum, _ in extremes))
        top = max(float(maximum) for _, maximum in extremes)
        usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
        high = next((bound for bound in usual if top <= bound), top)
    grey = Image.new("L", image.size)
    for box in _bands(image):
        scaled = (values_of(box) - low) / (high - low) * 255
        grey.paste(Image.fromarray(np.rint(scaled).astype(np.uint8), mode=None), box)
    return grey


@contextmanager
def _decoder_errors(path: str, data: bytes) -> Iterator[None]:
    """Turn any error of a decoder into an InputError about the file."""
    try:
        yield
    except UnidentifiedImageError as exc:
        raise not_an_image(describe_path(path), describe_bytes(data)) from exc
    except Image.DecompressionBombError as exc:
        raise InputError(
            f"{describe_path(path)} decodes to a suspiciously large size: {exc}",
            "Scale it down first.",
        ) from exc
    except InputError as exc:
        raise InputError(f"{describe_path(path)} cannot be used. {exc.message}", exc.hint) from exc
    except Exception as exc:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        raise InputError(
            f"{describe_path(path)} is damaged or cut off: {end_sentence(str(exc))}", WRITE_AGAIN
        ) from exc
