"""Rows of tensors out of shards: where they lie is read from the shards' headers, once each."""

from __future__ import annotations

import io
import mmap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.datasets.folder import slice_key
from hookscope.datasets.place import Place
from hookscope.errors import StoreError, cause
from hookscope.header import Place as Spot
from hookscope.narrow import RAW
from hookscope.outputs import header_in

OPEN = 128  # shards that are kept open: each takes a file descriptor


class OpenShard:
    """One shard whose header has been read.

    Args:
        place: the folder.
        told: what the manifest tells of it.

    Attributes:
        tensors: where each tensor lies, by its name in the file.

    Raises:
        StoreError: it is missing or not of the length that it had, or no safetensors file.
    """

    def __init__(self, place: Place, told: Mapping[str, Any]) -> None:
        self.first, self.rows = int(told["first"]), int(told["rows"])
        self._place, self._name = place, str(told["file"])
        size = place.size(self._name)
        if size != told["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes of {told['bytes']}"
            raise self._damaged(found)
        try:
            with place.open(self._name) as file:
                table, start = header_in(file)
                self._map = _map(file)
            self.tensors = {
                name: Spot(one["dtype"], tuple(one["shape"]), start + one["data_offsets"][0])
                for name, one in table.items()
                if name != "__metadata__"
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"cannot be read: {cause(error)}") from error

    def holds(self, key: str) -> bool:
        """Whether it has rows of ``key``."""
        return self._own(key) in self.tensors

    def spot(self, key: str) -> Spot:
        """Where the rows of ``key`` lie.

        Raises:
            StoreError: it has none, or their dtype is one that numpy cannot be given.
        """
        spot = self.tensors.get(self._own(key))
        if spot is None:
            raise self._damaged(f"holds no {self._own(key)}")
        if spot.dtype not in RAW:
            raise StoreError(
                f"{key} in {self._place} is of dtype {spot.dtype}, which cannot be shown.",
                "Upgrade hookscope.",
            )
        return spot

    def take(self, key: str, rows: NDArray[np.intp], inner: tuple[slice, ...]) -> NDArray[Any]:
        """Return the bits of a part of some rows; on a disk no other part is read.

        Args:
            key: the tensor.
            rows: counted from the shard's first, ascending, each once.
            inner: a slice for each further dimension.
        """
        spot = self.spot(key)
        raw = np.dtype(RAW[spot.dtype])
        count = int(np.prod(spot.shape, dtype=object))
        if self._map is None or not count:
            return self.fetch(key, rows, inner)
        whole = np.frombuffer(self._map, raw, count, spot.start).reshape(spot.shape)
        neighbours = rows.size and rows[-1] - rows[0] + 1 == rows.size
        first = slice(int(rows[0]), int(rows[-1]) + 1) if neighbours else rows
        return np.asarray(whole[(first, *inner)])

    def fetch(self, key: str, rows: NDArray[np.intp], inner: tuple[slice, ...]) -> NDArray[Any]:
        """Return the same by reading whole rows, without a map."""
        spot = self.spot(key)
        raw = np.dtype(RAW[spot.dtype])
        width = int(np.prod(spot.shape[1:], dtype=object)) * raw.itemsize
        found = [np.empty((0, *spot.shape[1:]), raw)[(slice(None), *inner)]]
        with self._place.open(self._name) as file:
            for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                if not run.size:
                    continue
                file.seek(spot.start + int(run[0]) * width)
                data = file.read(run.size * width)
                if len(data) < run.size * width:
                    raise self._damaged("is cut off")
                part = np.frombuffer(data, raw, len(data) // raw.itemsize)
                found.append(part.reshape(run.size, *spot.shape[1:])[(slice(None), *inner)])
        return np.concatenate(found) if len(found) > 2 else found[-1]

    def _own(self, key: str) -> str:
        return slice_key(key, self.first, self.first + self.rows)

    def _damaged(self, found: str) -> StoreError:
        return StoreError(
            f"The shard {self._name} in {self._place} {found}.",
            f"'hookscope verify {self._place}' tells what else is damaged.",
        )


class Shards:
    """All shards of a folder, each opened when one of its rows is asked for.

    Args:
        place: the folder.
        told: what the manifest tells of them, in order.
    """

    def __init__(self, place: Place, told: Sequence[Mapping[str, Any]]) -> None:
        self._made_of = (place, told)
        self._ends = np.cumsum([one["rows"] for one in told], dtype=np.intp)
        self.open = lru_cache(OPEN)(lambda number: OpenShard(place, told[number]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, self._made_of

    def __len__(self) -> int:
        return len(self._ends)

    def gather(
        self, key: str, rows: NDArray[np.intp], inner: tuple[slice, ...], mapped: bool = True
    ) -> NDArray[Any]:
        """Return the bits of a part of some rows.

        Args:
            key: the tensor.
            rows: ascending, each once.
            inner: a slice for each further dimension.
            mapped: read through a map of the file where there can be one. The system counts what
                was read so as this process's memory for as long as it has room.
        """
        spot = self.open(0).spot(key)
        lengths = [len(range(n)[s]) for n, s in zip(spot.shape[1:], inner, strict=True)]
        found = np.empty((rows.size, *lengths), RAW[spot.dtype])
        homes = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(homes):
            here = slice(*np.searchsorted(homes, [number, number + 1]))
            shard = self.open(int(number))
            read = shard.take if mapped else shard.fetch
            found[here] = read(key, rows[here] - shard.first, inner)
        return found


def _map(file: Any) -> mmap.mmap | None:
    """The file as memory, if it lies on a disk."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (AttributeError, io.UnsupportedOperation):
        return None
