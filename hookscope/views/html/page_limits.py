"""How much a page shows, so that it stays small: which feature maps, at which size, how many rows.

How large pictures can become is bounded from shapes alone, before any value is read. What the
bound cannot know, long names for instance, is measured on the finished page: ``api/report.py``
takes the next smaller choice until it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hookscope.results.records import Record, Recording
from hookscope.views.html.page_images import TILE_COLUMNS, TILE_GAP, drawn_part

MAX_PAGE_BYTES = 20_000_000  # bytes of a page
MAX_IMAGE_BYTES = 12_000_000  # of them, at most so many for pictures
TEXT_BYTES = 4_000  # of them, about so many for each tensor's numbers and histogram
PNG_OVERHEAD = 1300  # bytes of a PNG beside its pixels: 258 colours, their opacity, its own words


@dataclass(frozen=True)
class PageLimits:
    """What a page shows of each tensor, and of how many of them.

    Attributes:
        maps: how many feature maps of a tensor; 0 for none.
        side: pixels that the longer side of a map has at most.
        rows: how many tensors have a row and a panel.
    """

    maps: int
    side: int
    rows: int = 3000


LIMIT_STEPS = tuple(
    PageLimits(*step) for step in ((16, 56), (16, 40), (9, 32), (4, 32), (4, 16), (1, 16))
)


def descending_limits(captures: Iterable[Recording]) -> Iterator[PageLimits]:
    """Yield what may be shown, the most first; every choice is smaller than the one before.

    The first one is the largest of ``LADDER`` whose pictures take at most ``PICTURES`` bytes, and
    leave room for the words.
    """
    found = [(record, capture.image) for capture in captures for record in capture.records]
    shown = found[: LIMIT_STEPS[0].rows]
    room = min(MAX_IMAGE_BYTES, MAX_PAGE_BYTES - TEXT_BYTES * len(shown))
    fitting = [
        c
        for c in LIMIT_STEPS
        if sum(max_image_bytes(record, c, image) for record, image in shown) <= room
    ]
    yield from fitting
    last = PageLimits(0, 0)
    while last.rows:
        yield last
        last = replace(last, rows=last.rows // 2)


def max_image_bytes(
    record: Record, choice: PageLimits, image: tuple[int, int] | None = None
) -> int:
    """Return how many bytes the maps of one tensor take at most, as a ``data:`` address.

    A picture has one byte a pixel before it is packed, and deflate adds at most five bytes in 16 kB
    to that; base64 makes four of three.
    """
    part = drawn_part(record, choice.maps, image)
    height, width = part.drawn(choice.side)
    tiles = -(-part.maps // TILE_COLUMNS) * TILE_COLUMNS if part.maps > 1 else part.maps
    pixels = tiles * (height + TILE_GAP) * (width + TILE_GAP + 1)  # and a byte for each row
    return (pixels + pixels // 1000 + PNG_OVERHEAD) * 4 // 3 + 40 if tiles else 0
