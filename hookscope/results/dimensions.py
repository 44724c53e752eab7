"""What the dimensions of a layer's tensor are: from its shape, its layer's class, and the input.

The class of a layer decides where it can: ``Conv2d`` has channels second, ``Linear`` last. For all
others four dimensions are ``(N, C, H, W)``, unless only the first two of these three can be the
sides of a map.
"""

from __future__ import annotations

from hookscope.specs.record_kinds import ATTENTION, PARAM_GRAD, PARAM_UPDATE

ImageSize = tuple[int, int]  # height and width

# These work along the last dimension, whatever stands before it.
_ALONG_THE_LAST = {"Linear", "NonDynamicallyQuantizableLinear", "Bilinear", "Embedding"}


def channel_dim(type: str, ndim: int) -> int:
    """Return the dimension along which the channels lie, as far as the layer's class tells it.

    That is the last one at layers that work along it, such as ``Linear``, of tokens ``(N, L, C)``
    and of a vector ``(C,)``; for three dimensions at a module whose class name ends in ``1d``
    (``Conv1d``, ``BatchNorm1d``) they are ``(N, C, L)``, and it is 1; where it ends in ``2d`` they
    are ``(C, H, W)``, and it is 0. Else it is 1, as for ``(N, C)`` and images ``(N, C, H, W)``.

    Args:
        type: class name of the module.
        ndim: how many dimensions the tensor has.

    Example:
        >>> channel_dim("Conv2d", 4), channel_dim("LayerNorm", 3), channel_dim("Linear", 4)
        (1, 2, 3)
    """
    if type in _ALONG_THE_LAST:
        return max(ndim - 1, 0)
    if ndim == 3 and not type.endswith("1d"):
        return 0 if type.endswith("2d") else 2
    return min(1, max(ndim - 1, 0))


def find_channel_dim(type: str, kind: str, shape: tuple[int, ...], image: ImageSize | None) -> int:
    """Return the dimension along which the channels of a recorded tensor lie.

    It is ``channel_dim``, but the last one where a shape tells so and no class name says otherwise:
    see ``channels_last``.

    Args:
        type: class name of the module.
        kind: of the record.
        shape: of the tensor.
        image: of the images that went into the model, None where none did.

    Example:
        >>> find_channel_dim("SwinTransformerBlock", "output", (1, 7, 7, 768), (224, 224))
        3
    """
    settled = type.endswith(("1d", "2d", "3d")) or kind in (ATTENTION, PARAM_GRAD, PARAM_UPDATE)
    if not settled and image and channels_last(shape, image):
        return len(shape) - 1
    return channel_dim(type, len(shape))


def channels_last(shape: tuple[int, ...], image: ImageSize) -> bool:
    """Whether maps are ``(N, H, W, C)``, or ``(N, D, H, W, C)``.

    They are where the two dimensions before the last have the aspect of the image, and the last two
    have not. Where both might be, they are as PyTorch's own layers have them.

    Example:
        >>> channels_last((1, 7, 7, 768), (224, 224)), channels_last((1, 8, 8, 8), (224, 224))
        (True, False)
    """
    if len(shape) not in (4, 5):
        return False
    return has_aspect(shape[-3:-1], image) and not has_aspect(shape[-2:], image)


def has_aspect(sides: tuple[int, ...], image: ImageSize, exact: bool = False) -> bool:
    """Whether a map has the image's aspect, up to about one row or column of rounding."""
    (height, width), slack = sides, 0 if exact else max(image)
    return (
        height <= image[0]
        and width <= image[1]
        and abs(height * image[1] - width * image[0]) <= slack
    )


def layout(type: str, kind: str, shape: tuple[int, ...], image: ImageSize | None) -> str:
    """Return a letter for each dimension of a tensor that is drawn as maps.

    ``C`` is the channels, a map each, ``S`` a side of the maps; of the dimensions ``0`` and ``M``
    the first and the middle entry is drawn. Empty where a tensor makes no maps.

    Args:
        type, kind, shape, image: see ``find_channel_dim``.

    Example:
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
