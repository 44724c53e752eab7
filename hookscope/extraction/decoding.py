"""How image files become images: exactly, or quicker where they are far larger than needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PIL import Image

from hookscope.inputs import images
from hookscope.specs.choices import DECODINGS

Decode = Callable[[bytes, str, int], Image.Image]


def decoder(way: str, side: int) -> Decode:
    """Return what makes an image of the bytes of a file.

    Args:
        way: ``exact``, the pixels that a plain capture gives; or ``fast``, which lets libjpeg scale
            a JPEG down by 2, 4 or 8 while it decodes, to no less than twice ``side``.
        side: pixels of the longer side of what the model is given.
    """
    return images.decode if way == DECODINGS[0] else partial(_fast, side)


def _fast(side: int, data: bytes, word: str, channels: int) -> Image.Image:
    # The factor of two leaves the resizing that follows enough to average over.
    return images.decode(data, word, channels, at_least=2 * side)
