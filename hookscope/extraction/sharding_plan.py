"""How the rows of a dataset are split into shards and batches, and which process does which shards.

The rows of a batch depend only on the number of rows and on the sizes of batches and shards, not on
what has been done already or on the number of processes. So every way to run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hookscope.stores.features.folder import shard_name

# Defaults: the largest size of a shard in bytes, and the smallest number of shards.
_LARGEST_SHARD, _FEWEST_SHARDS = 512 * 10**6, 16


@dataclass(frozen=True)
class Shard:
    """The rows from ``first`` up to, but not including, ``last``, stored in one file."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return shard_name(self.first)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last - self.first

    def batches(self, size: int) -> Iterator[range]:
        """Its rows in batches of ``size``; the last batch may be smaller."""
        for first in range(self.first, self.last, size):
            yield range(first, min(first + size, self.last))


def plan_shards(rows: int, shard_rows: int) -> list[Shard]:
    """Split ``rows`` into shards.

    >>> [(shard.first, shard.last) for shard in plan_shards(10, 4)]
    [(0, 4), (4, 8), (8, 10)]
    """
    return [Shard(i, min(i + shard_rows, rows)) for i in range(0, rows, shard_rows)]


def assign_shards(
    shards: Sequence[Shard], done: Collection[str], rank: int, world: int
) -> list[Shard]:
    """The remaining shards for process ``rank`` of ``world``: an equal, contiguous part.

    >>> shards = plan_shards(10, 2)
    >>> [shard.first for shard in assign_shards(shards, {"rows-00000000.safetensors"}, 1, 2)]
    [6, 8]
    """
    remaining = [shard for shard in shards if shard.name not in done]
    return remaining[len(remaining) * rank // world : len(remaining) * (rank + 1) // world]


def shard_row_count(row_bytes: int, batch: int, shard_bytes: int | None, rows: int) -> int:
    """Number of rows of one shard: whole batches, and at least one batch.

    As many as fit into ``shard_bytes``. If that is None, as many as fit into 512 MB, and at most a
    sixteenth of all ``rows``, so that several processes can share the work.

    >>> shard_row_count(1000, 32, 100_000, 10_000)
    96
    >>> shard_row_count(1000, 32, None, 10_000)
    640
    """
    batches = (shard_bytes or _LARGEST_SHARD) // max(row_bytes * batch, 1)
    if shard_bytes is None:
        batches = min(batches, -(-rows // (_FEWEST_SHARDS * batch)))
    return max(batches, 1) * batch
