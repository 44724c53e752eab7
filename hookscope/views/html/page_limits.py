"""How much a page shows, so that it stays small: the number and size of maps, and of rows.

The size of images is bounded from shapes, before any value is read. Anything else, such as long
names, is measured on the finished page: ``api/report.py`` takes smaller limits until the page fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hookscope.results.records import Record, Recording
from hookscope.views.html.page_images import TILE_COLUMNS, TILE_GAP, drawn_part

MAX_PAGE_BYTES = 20_000_000
MAX_IMAGE_BYTES = 12_000_000  # of the page, for all images
TEXT_BYTES = 4_000  # of the page, for the numbers and the histogram of one tensor, about
PNG_OVERHEAD = 1300  # bytes of a PNG beside its pixels: 258 colours, their opacity, the headers
REPEATED_ROW = 16  # bytes of a row of pixels that repeats the row above it, compressed, at most


@dataclass(frozen=True)
class PageLimits:
    """How many maps of a tensor and how many tensors a page shows."""

    maps: int
    side: int
    rows: int = 3000


LIMIT_STEPS = tuple(
    PageLimits(*step) for step in ((16, 56), (16, 40), (9, 32), (4, 32), (4, 16), (1, 16))
)


def descending_limits(captures: Iterable[Recording]) -> Iterator[PageLimits]:
    """Yield limits for a page, each smaller than the one before.

    The first are the largest of ``LIMIT_STEPS`` whose images take at most ``MAX_IMAGE_BYTES`` and
    leave room for the text.
    """
    records = [(record, capture.image) for capture in captures for record in capture.records]
    shown = records[: LIMIT_STEPS[0].rows]
    room = min(MAX_IMAGE_BYTES, MAX_PAGE_BYTES - TEXT_BYTES * len(shown))
    for limits in LIMIT_STEPS:
        if sum(max_image_bytes(record, limits, image) for record, image in shown) <= room:
            yield limits
    last = PageLimits(0, 0)
    while last.rows:
        yield last
        last = replace(last, rows=last.rows // 2)


def max_image_bytes(
    record: Record, limits: PageLimits, image: tuple[int, int] | None = None
) -> int:
    """Return an upper bound of the bytes of one tensor's maps, as a ``data:`` URI.

    An image has one byte for each pixel before compression. Deflate adds at most five bytes to
    16 kB, and base64 writes three bytes as four.
    """
    part = drawn_part(record, limits.maps, image)
    height, width = part.drawn(limits.side)
    tiles = -(-part.maps // TILE_COLUMNS) * TILE_COLUMNS if part.maps > 1 else part.maps
    if not tiles:
        return 0
    pixels = tiles * (height + TILE_GAP) * (width + TILE_GAP + 1)  # one more byte for each row
    repeated = tiles * height * (part.row_repeats(limits.side) - 1) * REPEATED_ROW
    return (pixels + pixels // 1000 + repeated + PNG_OVERHEAD) * 4 // 3 + 40
