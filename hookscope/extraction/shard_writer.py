"""Writing shards: safetensors files whose size is known before the first row, filled as rows come.

A file is laid out at once and each batch is written to its places, so that no more than a batch is
in memory; it gets its name once it is whole.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from torch import Tensor

from hookscope.errors import StoreError
from hookscope.extraction.sharding_plan import Shard
from hookscope.files import strict_json
from hookscope.results.features.folder import crc32_in, slice_key, write_json
from hookscope.results.features.location import Location, write_error
from hookscope.results.features.manifest import part_name
from hookscope.specs.output_path import MARK
from hookscope.tensors.nested import bits_of

# What the format calls each dtype. https://github.com/huggingface/safetensors#format
SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


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
    """The file of a shard while its rows come."""

    def write(self, first: int, values: Any) -> int:
        """Take what is kept of the rows from ``first`` on; return how many bytes were written."""

    def finish(self) -> dict[str, Any]:
        """Give the file its name; return what is known of it."""

    def discard(self) -> None:
        """Leave nothing of it."""


class ShardFile:
    """One shard while it is being filled.

    Args:
        place: where it goes.
        shard: its rows.
        stored: what is kept of each row.
    """

    def __init__(self, place: Location, shard: Shard, stored: Sequence[StoredColumn]) -> None:
        self.place = place
        self.shard = shard
        self.scratch = place.scratch(shard.name)
        self._stored = {one.key: one for one in stored}
        header, self._places = _header(shard, stored)
        self._file: BinaryIO = self.scratch.open("wb")
        self._file.write(header)

    def write(self, first: int, values: Mapping[str, Tensor]) -> int:
        """Write the rows from ``first`` on to their places; return how many bytes that was."""
        written = 0
        for key, tensor in values.items():
            start = self._places[key] + (first - self.shard.first) * self._stored[key].bytes
            self._file.seek(start)
            written += self._file.write(bits_of(tensor).numpy().data)
        return written

    def finish(self) -> dict[str, Any]:
        """Give the file its name; return what is known of it."""
        self._file.close()
        return publish_file(self.place, self.shard.name, self.scratch, self.shard)

    def discard(self) -> None:
        """Leave nothing of it."""
        with suppress(OSError):  # of a full disk, where the last of it does not go
            self._file.close()
        self.scratch.unlink(missing_ok=True)


def publish_file(place: Location, name: str, scratch: Path, rows: Shard) -> dict[str, Any]:
    """Give a whole file its name; return what is known of it."""
    with scratch.open("rb") as file:
        checksum = crc32_in(file)
    told = {
        "file": name,
        "first": rows.first,
        "rows": rows.rows,
        "bytes": scratch.stat().st_size,
        "crc32": checksum,
    }
    place.take(scratch, name)
    return told


def _header(shard: Shard, stored: Sequence[StoredColumn]) -> tuple[bytes, dict[str, int]]:
    """The beginning of a shard's file, and where in the file each key's first row goes."""
    told = {"schema": 1, "rows": [shard.first, shard.last], "keys": [one.key for one in stored]}
    table: dict[str, Any] = {"__metadata__": {MARK: strict_json.dumps(told, sort_keys=True)}}
    offsets: dict[str, int] = {}
    end = 0
    # The widest types first: then each tensor lies at a multiple of the size of its values.
    for one in sorted(stored, key=lambda one: -one.dtype.itemsize):
        offsets[one.key], end = end, end + one.bytes * shard.rows
        table[slice_key(one.key, shard.first, shard.last)] = {
            "dtype": SAFETENSORS_DTYPES[one.dtype],
            "shape": [shard.rows, *one.shape],
            "data_offsets": [offsets[one.key], end],
        }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {k: start + v for k, v in offsets.items()}


_FINISHING = 2  # shards that are finished at once; filling another then waits


@dataclass(frozen=True)
class PendingBatch:
    """A batch that is ready to be written; ``lines`` are those of its rows in the table."""

    shard: Shard
    first: int
    values: Any  # what the shard's file takes
    lines: Sequence[dict[str, Any]]


class BackgroundWriter:
    """Writes batches in order on a thread of its own, within a ``with`` block.

    What is known of a finished shard goes to ``.parts`` at once: that is what a later run goes on
    from. Leaving the block waits for what has been put, unless an error leaves it.

    Args:
        place: the folder where the shards go.
        begin: makes the file of a shard.
    """

    def __init__(self, place: Location, begin: Callable[[Location, Shard], ShardWriter]) -> None:
        self.place = place
        self.begin = begin
        self.bytes = 0
        self._queue: queue.Queue[PendingBatch | None] = queue.Queue(maxsize=2)
        self._error: BaseException | None = None
        self._untold: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._work, name="hookscope-writer", daemon=True)

    def __enter__(self) -> BackgroundWriter:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if error is None:
            self._raise()

    def put(self, filled: PendingBatch) -> None:
        """Hand a batch over; waits while two others wait.

        Raises:
            StoreError: an earlier one could not be written.
        """
        self._raise()
        self._queue.put(filled)

    def _raise(self) -> None:
        if isinstance(self._error, OSError):
            raise write_error(f"to {self.place}", self._error) from self._error
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        finishing: deque[Future[None]] = deque()
        with ThreadPoolExecutor(_FINISHING, "hookscope-finisher") as pool:
            try:
                self._fill(pool, finishing)
            except BaseException as error:
                self._error = error
                while self._queue.get() is not None:  # let whoever puts go on, to see the error
                    pass
        for one in finishing:
            self._error = self._error or one.exception()
        self._tell_again()

    def _fill(self, pool: ThreadPoolExecutor, finishing: deque[Future[None]]) -> None:
        file: ShardWriter | None = None
        lines: list[dict[str, Any]] = []
        try:
            while (filled := self._queue.get()) is not None:
                if file is None:
                    file, lines = self.begin(self.place, filled.shard), []
                self.bytes += file.write(filled.first, filled.values)
                lines += filled.lines
                if lines[-1]["row"] + 1 == filled.shard.last:
                    while len(finishing) >= _FINISHING:
                        finishing.popleft().result()
                    finishing.append(pool.submit(self._finish, file, lines))
                    file = None
        finally:
            if file is not None:
                file.discard()

    def _finish(self, file: ShardWriter, lines: list[dict[str, Any]]) -> None:
        try:
            known = file.finish() | {"inputs": lines}
        except BaseException:
            file.discard()
            raise
        try:
            self._tell(known)
        except StoreError:
            self._untold.append(known)

    def _tell(self, known: dict[str, Any]) -> None:
        write_json(self.place, part_name(known["first"]), known)

    def _tell_again(self) -> None:
        """Tell of what is finished and could not be told, now that a shard's beginning is gone."""
        try:
            for known in self._untold:
                self._tell(known)
        except StoreError as error:
            self._error = self._error or error
