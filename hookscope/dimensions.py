"""What the dimensions of a layer's tensor are, from its shape and the layer's class name alone."""

from __future__ import annotations


def channel_dim(type: str, ndim: int) -> int:
    """Return the dimension along which the channels of a layer's tensor lie.

    That is 1 for ``(N, C)`` and for images and volumes ``(N, C, H, W)``, the last for tokens
    ``(N, L, C)`` and for a vector ``(C,)``; for three dimensions at a module whose class name ends
    in ``1d`` (``Conv1d``, ``BatchNorm1d``) they are ``(N, C, L)``, and it is 1.

    Args:
        type: class name of the module.
        ndim: how many dimensions the tensor has.

    Example:
        >>> channel_dim("Conv2d", 4), channel_dim("LayerNorm", 3), channel_dim("Conv1d", 3)
        (1, 2, 1)
    """
    if ndim == 3 and not type.endswith("1d"):
        return 2
    return min(1, max(ndim - 1, 0))
