"""The patches of an image among the tokens of a vision transformer, inferred from shapes."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from hookscope.results.dimensions import ImageSize, has_aspect

MAX_PREFIX_TOKENS = 16  # class tokens, distillation tokens, registers


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

    Example:
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
