"""The meaning of a tensor's dimensions: batch, channel, token, height and width.

The class of a layer decides if possible: ``Conv2d`` has channels second, ``Linear`` last. For all
other classes four dimensions are ``(N, C, H, W)``, unless only dimensions 1 and 2 have the aspect
ratio of the input image.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from hookscope.specs.tensor_key import ATTENTION, PARAM_GRAD, PARAM_UPDATE

ImageSize = tuple[int, int]  # height and width

# These layers work along the last dimension, whatever the others are.
_ALONG_THE_LAST = {"Linear", "NonDynamicallyQuantizableLinear", "Bilinear", "Embedding"}

# Those, and layers that take (N, L, C) and return the same.
CHANNELS_LAST = _ALONG_THE_LAST | {
    "LayerNorm",
    "RMSNorm",
    "TransformerEncoderLayer",
    "MultiheadAttention",
}

MAX_PREFIX_TOKENS = 16  # class tokens, distillation tokens, registers


def channel_dim(type: str, ndim: int) -> int:
    """Return the dimension of the channels, by the layer's class.

    It is the last dimension for layers such as ``Linear``, for tokens ``(N, L, C)`` and for a
    vector ``(C,)``. Three dimensions are ``(N, C, L)`` if the class name ends in ``1d``
    (``Conv1d``, ``BatchNorm1d``), and ``(C, H, W)`` if it ends in ``2d``. In all other cases it is
    1, as in ``(N, C)`` and ``(N, C, H, W)``.
    """
    if type in _ALONG_THE_LAST:
        return max(ndim - 1, 0)
    if ndim == 3 and not type.endswith("1d"):
        return 0 if type.endswith("2d") else 2
    return min(1, max(ndim - 1, 0))


def find_channel_dim(type: str, kind: str, shape: tuple[int, ...], image: ImageSize | None) -> int:
    """Return the dimension of the channels of a recorded tensor.

    It is ``channel_dim``, or the last dimension if the shape is ``channels_last`` and the class
    name does not contradict.
    """
    known = type.endswith(("1d", "2d", "3d")) or kind in (ATTENTION, PARAM_GRAD, PARAM_UPDATE)
    if not known and image and channels_last(shape, image):
        return len(shape) - 1
    return channel_dim(type, len(shape))


def channels_last(shape: tuple[int, ...], image: tuple[int, ...]) -> bool:
    """Whether maps are ``(N, H, W, C)``, or ``(N, D, H, W, C)``.

    They are if the two dimensions before the last have the image's aspect ratio, and the last two
    have not. If both have it, the layout is that of PyTorch's layers, channels first.
    """
    if len(shape) not in (4, 5):
        return False
    return has_aspect(shape[-3:-1], image) and not has_aspect(shape[-2:], image)


def has_aspect(sides: tuple[int, ...], image: tuple[int, ...], exact: bool = False) -> bool:
    """Whether a map has the image's aspect ratio, up to about one row or column of rounding."""
    (height, width), slack = sides, 0 if exact else max(image)
    return (
        height <= image[0]
        and width <= image[1]
        and abs(height * image[1] - width * image[0]) <= slack
    )


def layout(type: str, kind: str, shape: tuple[int, ...], image: ImageSize | None) -> str:
    """Return a letter for each dimension of a tensor that is drawn as maps.

    ``C`` is the dimension of the channels, with a map for each, ``S`` a side of the maps. ``0`` is
    a dimension of which the first entry is drawn, ``M`` the middle entry. Empty if there are no
    maps.

    >>> layout("Conv2d", "output", (2, 64, 7, 7), None)
    '0CSS'
    """
    ndim = len(shape)
    if kind in (PARAM_GRAD, PARAM_UPDATE):
        letters = ("", "S", "SS", "CSS", "C0SS", "C0MSS")
    elif (dim := find_channel_dim(type, kind, shape, image)) == ndim - 1:
        letters = ("", "S", "SS", "0SS", "0SSC", "0MSSC")
    else:
        letters = ("", "S", "SS", "0SS" if dim else "CSS", "0CSS", "0CMSS")
    return letters[ndim] if ndim < len(letters) else ""


class TokenGrid(NamedTuple):
    """A grid of patches, after ``prefix`` other tokens."""

    height: int
    width: int
    prefix: int


def find_token_grid(
    length: int, image: ImageSize, known: Collection[tuple[int, int]] = ()
) -> TokenGrid | None:
    """Return the grid that ``length`` tokens form; None if they form none.

    It is the grid of an earlier layer's maps, else one of the image's aspect, with as few tokens
    before it as possible, up to 16.

    >>> find_token_grid(197, (224, 224))
    TokenGrid(height=14, width=14, prefix=1)
    """
    prefixes = range(min(MAX_PREFIX_TOKENS, length - 2) + 1)
    for prefix in prefixes:
        for height, width in known:
            if height * width == length - prefix:
                return TokenGrid(height, width, prefix)
    for exact in (True, False):
        for prefix in prefixes:
            count = length - prefix
            for height in range(1, count + 1):
                if count % height == 0 and has_aspect((height, count // height), image, exact):
                    return TokenGrid(height, count // height, prefix)
    return None
