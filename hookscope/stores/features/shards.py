"""Rows of tensors read from shards. The header of a shard is read once."""

from __future__ import annotations

import io
import mmap
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import ResultsFileError, cause
from hookscope.results.dtypes import RAW
from hookscope.stores.features.folder import is_intact, slice_key
from hookscope.stores.features.location import Location
from hookscope.stores.features.manifest import ShardEntry
from hookscope.stores.weights.safetensors_reader import StoredTensor, stored_tensors

MAX_OPEN = 128  # shards that are kept open: each takes a file descriptor


class OpenShard:
    """One shard whose header has been read."""

    def __init__(self, location: Location, entry: ShardEntry) -> None:
        self.first, self.rows = int(entry["first"]), int(entry["rows"])
        self._location, self._name = location, str(entry["file"])
        size = location.size(self._name)
        if size is None or size != entry["bytes"]:
            problem = (
                "is missing" if size is None else f"has {size} bytes instead of {entry['bytes']}"
            )
            raise self.damaged(problem)
        try:
            with location.open(self._name) as file:
                _, self.tensors = stored_tensors(file)
                self._map = _map(file)
        except (OSError, ValueError) as error:
            raise self.damaged(f"cannot be read: {cause(error)}") from error

    def holds(self, key: str) -> bool:
        """Whether it has rows of ``key``."""
        return self._slice_key(key) in self.tensors

    def stored_tensor(self, key: str, shape: Sequence[int]) -> StoredTensor:
        """Return where the rows of ``key`` are stored."""
        stored = self.tensors.get(self._slice_key(key))
        if stored is None or stored.shape != (self.rows, *shape):
            name = self._slice_key(key)
            raise self.damaged(f"has no {name} of the shape in the manifest")
        if stored.dtype not in RAW:
            raise ResultsFileError(
                f"{key} in {self._location} is of dtype {stored.dtype}, which cannot be shown.",
                "Upgrade hookscope.",
            )
        return stored

    def read(
        self, stored: StoredTensor, rows: NDArray[np.intp], inner: tuple[slice, ...]
    ) -> NDArray[Any]:
        """Return the bits of a part of some rows, through a memory map if the file is on a disk."""
        raw = np.dtype(RAW[stored.dtype])
        count = int(np.prod(stored.shape, dtype=object))
        if self._map is None or not count:
            return self.read_rows(stored, rows, inner)
        tensor = np.frombuffer(self._map, raw, count, stored.start).reshape(stored.shape)
        contiguous = rows.size and rows[-1] - rows[0] + 1 == rows.size
        first = slice(int(rows[0]), int(rows[-1]) + 1) if contiguous else rows
        return np.asarray(tensor[(first, *inner)])

    def read_rows(
        self, stored: StoredTensor, rows: NDArray[np.intp], inner: tuple[slice, ...]
    ) -> NDArray[Any]:
        """Return the same bits by reading whole rows, without a memory map."""
        raw = np.dtype(RAW[stored.dtype])
        width = int(np.prod(stored.shape[1:], dtype=object)) * raw.itemsize
        parts = [np.empty((0, *stored.shape[1:]), raw)[(slice(None), *inner)]]
        try:
            with self._location.open(self._name) as file:
                for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                    if not run.size:
                        continue
                    file.seek(stored.start + int(run[0]) * width)
                    data = file.read(run.size * width)
                    if len(data) < run.size * width:
                        raise self.damaged("is truncated")
                    part = np.frombuffer(data, raw, len(data) // raw.itemsize)
                    parts.append(part.reshape(run.size, *stored.shape[1:])[(slice(None), *inner)])
        except OSError as error:  # the file was there when it was opened
            raise self.damaged(f"cannot be read: {cause(error)}") from error
        return np.concatenate(parts) if len(parts) > 2 else parts[-1]

    def _slice_key(self, key: str) -> str:
        return slice_key(key, self.first, self.first + self.rows)

    def damaged(self, problem: str) -> ResultsFileError:
        """Return the error for a damaged shard."""
        return ResultsFileError(
            f"The shard {self._name} in {self._location} {problem}.",
            f"'hookscope verify {self._location}' lists all damaged files.",
        )


class Shards:
    """All shards of a folder. A shard is opened when one of its rows is read."""

    def __init__(
        self, location: Location, entries: Sequence[ShardEntry], sums: bool = False
    ) -> None:
        self._arguments = (location, entries, sums)
        self._location, self._entries = location, entries
        self._unchecked = set(range(len(entries))) if sums else set()
        self._ends = np.cumsum([entry["rows"] for entry in entries], dtype=np.intp)
        self.open = lru_cache(MAX_OPEN)(lambda number: OpenShard(location, entries[number]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, self._arguments

    def __len__(self) -> int:
        return len(self._ends)

    def gather(
        self,
        key: str,
        shape: Sequence[int],
        rows: NDArray[np.intp],
        inner: tuple[slice, ...],
        mapped: bool = True,
    ) -> NDArray[Any]:
        """Return the bits of a part of some rows."""
        dtype = self.open(0).stored_tensor(key, shape).dtype
        lengths = [len(range(n)[s]) for n, s in zip(shape, inner, strict=True)]
        values = np.empty((rows.size, *lengths), RAW[dtype])
        shard_numbers = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(shard_numbers):
            part = slice(*np.searchsorted(shard_numbers, [number, number + 1]))
            shard = self.open(int(number))
            if number in self._unchecked:
                self._check(int(number))
            stored = shard.stored_tensor(key, shape)
            if stored.dtype != dtype:
                raise shard.damaged(f"stores {key} as {stored.dtype}, but other shards as {dtype}")
            read = shard.read if mapped else shard.read_rows
            values[part] = read(stored, rows[part] - shard.first, inner)
        return values

    def _check(self, number: int) -> None:
        shard = self.open(number)
        try:
            intact = is_intact(self._location, self._entries[number])
        except OSError as error:
            raise shard.damaged(f"cannot be read: {cause(error)}") from error
        if not intact:
            raise shard.damaged("is damaged: its checksum does not match")
        self._unchecked.discard(number)  # another thread may have checked it too


def _map(file: Any) -> mmap.mmap | None:
    """A memory map of the file; None if it is not on a disk."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (AttributeError, io.UnsupportedOperation):
        return None
