"""Writing shards: safetensors files of a known size, filled batch by batch in the background.

The layout of a file is known before its first row, and each batch is written to its place in the
file, so that at most one batch is in memory. A file gets its name when it is complete. Values may
be stored in fewer bytes: half precision, or int8 with one scale per row.

One thread fills shards while the model computes the next batches. Other threads finish the shards
that are full: the checksum, or sending the file to its destination, takes longest.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from torch import Tensor

from hookscope.errors import StoreError
from hookscope.extraction.axes import row_size
from hookscope.files import strict_json
from hookscope.files.output_path import MARK
from hookscope.files.safetensors_header import METADATA, header_bytes
from hookscope.specs.extract_options import INT8
from hookscope.stores.features.folder import crc32_in, shard_name, slice_key, write_json
from hookscope.stores.features.location import Location, write_error
from hookscope.stores.features.manifest import FinishedShard, RowFile, part_name
from hookscope.tensors.nested import bits_of
from hookscope.tensors.save import SAFETENSORS_DTYPES

SCALE = ".scale"
_LARGEST = 127


# Defaults: the largest size of a shard in bytes, and the smallest number of shards.
_LARGEST_SHARD, _FEWEST_SHARDS = 512 * 10**6, 16
_FINISHING = 2  # shards that are finished at once; filling another one then waits


class StorageCast:
    """Converts values to the dtype in which they are stored."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.lost: Tensor | int = 0  # stays on the device, so that nothing waits for it

    def __call__(self, name: str, rows: Tensor) -> dict[str, Tensor]:
        """Return the stored tensors of ``rows`` by key: ``name``, and the scale for int8."""
        if self.dtype == INT8:
            values, scale = to_int8(rows)
            self.lost = self.lost + (~rows.float().isfinite()).sum()
            return {name: values, f"{name}{SCALE}": scale}
        half = rows.to(getattr(torch, self.dtype))
        self.lost = self.lost + (half.isinf() & ~rows.isinf()).sum()
        return {name: half}

    def warning(self, key: str) -> str:
        """The message about the values that were lost."""
        if self.dtype == INT8:
            lost = f"{int(self.lost)} values are not finite or outside the range of float32"
            return f"{key}: {lost}, and int8 cannot represent them"
        return f"{key}: {int(self.lost)} values are too large for {self.dtype} and became infinite"


def to_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values and the float32 scale of each row; a value is about ``int8 * scale``.

    The scale is the row's largest finite magnitude over 127, so the error of a finite value is at
    most half the scale. Infinite values become the largest magnitude and NaN becomes 0. Values
    beyond the range of float32 are clamped to it.
    """
    flat = rows.reshape(len(rows), row_size(rows))
    single, largest = flat.float(), torch.finfo(torch.float32).max
    flat = torch.where(flat.isinf(), single, single.clamp(-largest, largest))
    finite = torch.where(flat.isfinite(), flat, 0)
    peak = finite.abs().amax(1) if flat.shape[1] else flat.new_zeros(len(flat))
    scale = peak / _LARGEST
    steps = finite / torch.where(scale == 0, 1, scale).unsqueeze(1)
    steps = torch.where(flat.isinf(), flat.sign() * _LARGEST, steps.round())
    return steps.clamp(-_LARGEST, _LARGEST).to(torch.int8).reshape(rows.shape), scale


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
    """Split ``rows`` into shards."""
    return [Shard(i, min(i + shard_rows, rows)) for i in range(0, rows, shard_rows)]


def assign_shards(
    shards: Sequence[Shard], done: Collection[str], rank: int, world: int
) -> list[Shard]:
    """The remaining shards for process ``rank`` of ``world``: an equal, contiguous part."""
    remaining = [shard for shard in shards if shard.name not in done]
    return remaining[len(remaining) * rank // world : len(remaining) * (rank + 1) // world]


def shard_row_count(row_bytes: int, batch: int, shard_bytes: int | None, rows: int) -> int:
    """Number of rows of one shard: whole batches, and at least one batch.

    As many as fit into ``shard_bytes``. If that is None, as many as fit into 512 MB, and at most a
    sixteenth of all ``rows``, so that several processes can share the work.
    """
    batches = (shard_bytes or _LARGEST_SHARD) // max(row_bytes * batch, 1)
    if shard_bytes is None:
        batches = min(batches, -(-rows // (_FEWEST_SHARDS * batch)))
    return max(batches, 1) * batch


@dataclass(frozen=True)
class StoredColumn:
    """A key of the shards: the shape of one row, and the dtype."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size of one row."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class ShardWriter(Protocol):
    """Writes the file of a shard, batch by batch."""

    def write(self, rows: Sequence[int], values: Any) -> int:
        """Write the values of rows with these numbers; return the number of bytes written."""

    def finish(self) -> RowFile:
        """Give the file its name; return its entry for the manifest."""

    def discard(self) -> None:
        """Remove the unfinished file."""


class ShardFile:
    """Writes the rows of one shard to a safetensors file."""

    def __init__(self, location: Location, shard: Shard, columns: Sequence[StoredColumn]) -> None:
        self.location = location
        self.shard = shard
        self.scratch = location.scratch(shard.name)
        self._columns = {column.key: column for column in columns}
        header, self._offsets = _header(shard, columns)
        self._file: BinaryIO = self.scratch.open("wb")
        self._file.write(header)

    def write(self, rows: Sequence[int], values: Mapping[str, Tensor]) -> int:
        """Write the values of rows with these numbers; return the number of bytes written."""
        written = 0
        for key, tensor in values.items():
            for first, part in _runs(rows, tensor):
                start = self._offsets[key] + (first - self.shard.first) * self._columns[key].bytes
                self._file.seek(start)
                written += self._file.write(bits_of(part).numpy().data)
        return written

    def finish(self) -> RowFile:
        """Give the file its name; return its entry for the manifest."""
        self._file.close()
        return publish_file(self.location, self.shard.name, self.scratch, self.shard)

    def discard(self) -> None:
        """Remove the unfinished file."""
        with suppress(OSError):  # a full disk: the last buffered bytes cannot be written
            self._file.close()
        self.scratch.unlink(missing_ok=True)


def _runs(rows: Sequence[int], values: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The values of each run of consecutive rows, with the number of its first row."""
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1:
            yield rows[start], values[start:i]
            start = i


def publish_file(location: Location, name: str, scratch: Path, rows: Shard) -> RowFile:
    """Give a complete file its name; return its entry for the manifest."""
    with scratch.open("rb") as file:
        checksum = crc32_in(file)
    entry: RowFile = {
        "file": name,
        "first": rows.first,
        "rows": rows.rows,
        "bytes": scratch.stat().st_size,
        "crc32": checksum,
    }
    location.publish(scratch, name)
    return entry


def _header(shard: Shard, columns: Sequence[StoredColumn]) -> tuple[bytes, dict[str, int]]:
    """The beginning of a shard's file, and the offset in the file of each key's first row."""
    keys = [column.key for column in columns]
    metadata = {"schema": 1, "rows": [shard.first, shard.last], "keys": keys}
    table: dict[str, Any] = {METADATA: {MARK: strict_json.dumps(metadata, sort_keys=True)}}
    offsets: dict[str, int] = {}
    end = 0
    # The widest dtypes first, so that each tensor begins at a multiple of its item size.
    for column in sorted(columns, key=lambda column: -column.dtype.itemsize):
        offsets[column.key], end = end, end + column.bytes * shard.rows
        table[slice_key(column.key, shard.first, shard.last)] = {
            "dtype": SAFETENSORS_DTYPES[column.dtype],
            "shape": [shard.rows, *column.shape],
            "data_offsets": [offsets[column.key], end],
        }
    header = header_bytes(json.dumps(table, separators=(",", ":")).encode())
    return header, {key: len(header) + offset for key, offset in offsets.items()}


@dataclass(frozen=True)
class PendingBatch:
    """A batch to be written; ``entries`` are the lines of its rows in the table of inputs."""

    shard: Shard
    rows: Sequence[int]
    values: Any  # what the shard's writer takes
    entries: Sequence[dict[str, Any]]


class BackgroundWriter:
    """Writes batches in order on a thread of its own, within a ``with`` block.

    The entry of a finished shard is written to ``.parts`` at once: a later run resumes from it.
    Leaving the block waits until all batches are written, unless an exception leaves it.
    """

    def __init__(self, location: Location, begin: Callable[[Location, Shard], ShardWriter]) -> None:
        self.location = location
        self.begin = begin
        self.bytes = 0
        self._queue: queue.Queue[PendingBatch | None] = queue.Queue(maxsize=2)
        self._error: BaseException | None = None
        self._unwritten_parts: list[FinishedShard] = []
        self._thread = threading.Thread(target=self._work, name="hookscope-writer", daemon=True)

    def __enter__(self) -> BackgroundWriter:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if error is None:
            self._raise()

    def put(self, batch: PendingBatch) -> None:
        """Hand a batch over; waits while two others wait."""
        self._raise()
        self._queue.put(batch)

    def _raise(self) -> None:
        if isinstance(self._error, OSError):
            raise write_error(f"to {self.location}", self._error) from self._error
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        finishing: deque[Future[None]] = deque()
        with ThreadPoolExecutor(_FINISHING, "hookscope-finisher") as pool:
            try:
                self._fill(pool, finishing)
            except BaseException as error:
                self._error = error
                while self._queue.get() is not None:  # unblock ``put``, which then raises the error
                    pass
        for future in finishing:
            self._error = self._error or future.exception()
        self._retry_parts()

    def _fill(self, pool: ThreadPoolExecutor, finishing: deque[Future[None]]) -> None:
        writer: ShardWriter | None = None
        entries: list[dict[str, Any]] = []
        try:
            while (batch := self._queue.get()) is not None:
                if writer is None:
                    writer, entries = self.begin(self.location, batch.shard), []
                self.bytes += writer.write(batch.rows, batch.values)
                entries += batch.entries
                if len(entries) == batch.shard.rows:
                    entries.sort(key=itemgetter("row"))
                    while len(finishing) >= _FINISHING:
                        finishing.popleft().result()
                    finishing.append(pool.submit(self._finish, writer, entries))
                    writer = None
        finally:
            if writer is not None:
                writer.discard()

    def _finish(self, writer: ShardWriter, entries: list[dict[str, Any]]) -> None:
        try:
            part: FinishedShard = {**writer.finish(), "inputs": entries}
        except BaseException:
            writer.discard()
            raise
        try:
            self._write_part(part)
        except StoreError:
            self._unwritten_parts.append(part)

    def _write_part(self, part: FinishedShard) -> None:
        write_json(self.location, part_name(part["first"]), part)

    def _retry_parts(self) -> None:
        """Write the parts that failed before, now that the unfinished shard has been removed."""
        try:
            for part in self._unwritten_parts:
                self._write_part(part)
        except StoreError as error:
            self._error = self._error or error
