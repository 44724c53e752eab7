"""How the rows of a dataset are parted into shards and batches, and who does which.

Which rows lie in a batch depends on nothing but the number of rows and the sizes: not on what has
been done already, nor on how many processes there are. So the same bytes come whichever way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hookscope.results.features.folder import shard_name

_LARGEST, _SHARDS = 512 * 10**6, 16  # bytes of a shard, and shards at least, if nothing is said


@dataclass(frozen=True)
class Shard:
    """Rows from ``first`` up to, and without, ``last``, which one file holds."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return shard_name(self.first)

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return self.last - self.first

    def batches(self, size: int) -> Iterator[range]:
        """Its rows in batches of ``size``, the last of which may be smaller."""
        for first in range(self.first, self.last, size):
            yield range(first, min(first + size, self.last))


def plan_shards(rows: int, shard_rows: int) -> list[Shard]:
    """Part ``rows`` into shards.

    >>> [(shard.first, shard.last) for shard in plan_shards(10, 4)]
    [(0, 4), (4, 8), (8, 10)]
    """
    return [Shard(i, min(i + shard_rows, rows)) for i in range(0, rows, shard_rows)]


def assign_shards(
    shards: Sequence[Shard], done: Collection[str], rank: int, world: int
) -> list[Shard]:
    """The shards that are left for process ``rank`` of ``world``: an equal, neighbouring part.

    >>> [shard.first for shard in share(plan_shards(10, 2), {"rows-00000000.safetensors"}, 1, 2)]
    [6, 8]
    """
    left = [shard for shard in shards if shard.name not in done]
    return left[len(left) * rank // world : len(left) * (rank + 1) // world]


def shard_row_count(row_bytes: int, batch: int, shard_bytes: int | None, rows: int) -> int:
    """Rows of one shard: whole batches, and at least one.

    As many as fit into ``shard_bytes``; where that is not given, into 512 MB, and no more than a
    sixteenth of all ``rows``, so that several processes find enough to share.

    >>> shard_row_count(1000, 32, 100_000, 10_000)
    96
    >>> shard_row_count(1000, 32, None, 10_000)
    640
    """
    fitting = (shard_bytes or _LARGEST) // max(row_bytes * batch, 1)
    if shard_bytes is None:
        fitting = min(fitting, -(-rows // (_SHARDS * batch)))
    return max(fitting, 1) * batch
