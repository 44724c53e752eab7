"""Rows of tensors out of shards: where they lie is read from the shards' headers, once each."""

from __future__ import annotations

import io
import mmap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import ResultsFileError, cause
from hookscope.results.capture_file import StoredTensor as Spot
from hookscope.results.dtypes import RAW
from hookscope.results.features.folder import is_intact, slice_key
from hookscope.results.features.location import Location
from hookscope.specs.output_path import header_in

MAX_OPEN = 128  # shards that are kept open: each takes a file descriptor


class OpenShard:
    """One shard whose header has been read.

    Args:
        place: the folder.
        told: what the manifest tells of it.

    Attributes:
        tensors: where each tensor lies, by its name in the file.

    Raises:
        ResultsFileError: it is missing or not of the length that it had, or no safetensors file.
    """

    def __init__(self, place: Location, told: Mapping[str, Any]) -> None:
        self.first, self.rows = int(told["first"]), int(told["rows"])
        self._place, self._name = place, str(told["file"])
        size = place.size(self._name)
        if size is None or size != told["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes of {told['bytes']}"
            raise self.damaged(found)
        try:
            with place.open(self._name) as file:
                table, start = header_in(file)
                self._map = _map(file)
            table.pop("__metadata__", None)
            _demand_whole(table, size - start)
            self.tensors = {
                name: Spot(one["dtype"], tuple(one["shape"]), start + one["data_offsets"][0])
                for name, one in table.items()
            }
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.damaged(f"cannot be read: {cause(error)}") from error

    def holds(self, key: str) -> bool:
        """Whether it has rows of ``key``."""
        return self._own(key) in self.tensors

    def spot(self, key: str, shape: Sequence[int]) -> Spot:
        """Where the rows of ``key`` lie, each of ``shape``.

        Raises:
            ResultsFileError: it has none, or their dtype is one that numpy cannot be given.
        """
        spot = self.tensors.get(self._own(key))
        if spot is None or spot.shape != (self.rows, *shape):
            raise self.damaged(f"holds no {self._own(key)} of the shape that the manifest tells")
        if spot.dtype not in RAW:
            raise ResultsFileError(
                f"{key} in {self._place} is of dtype {spot.dtype}, which cannot be shown.",
                "Upgrade hookscope.",
            )
        return spot

    def take(self, spot: Spot, rows: NDArray[np.intp], inner: tuple[slice, ...]) -> NDArray[Any]:
        """Return the bits of a part of some rows; on a disk no other part is read.

        Args:
            spot: where the tensor lies.
            rows: counted from the shard's first, ascending, each once.
            inner: a slice for each further dimension.
        """
        raw = np.dtype(RAW[spot.dtype])
        count = int(np.prod(spot.shape, dtype=object))
        if self._map is None or not count:
            return self.fetch(spot, rows, inner)
        whole = np.frombuffer(self._map, raw, count, spot.start).reshape(spot.shape)
        neighbours = rows.size and rows[-1] - rows[0] + 1 == rows.size
        first = slice(int(rows[0]), int(rows[-1]) + 1) if neighbours else rows
        return np.asarray(whole[(first, *inner)])

    def fetch(self, spot: Spot, rows: NDArray[np.intp], inner: tuple[slice, ...]) -> NDArray[Any]:
        """Return the same by reading whole rows, without a map."""
        raw = np.dtype(RAW[spot.dtype])
        width = int(np.prod(spot.shape[1:], dtype=object)) * raw.itemsize
        found = [np.empty((0, *spot.shape[1:]), raw)[(slice(None), *inner)]]
        try:
            with self._place.open(self._name) as file:
                for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                    if not run.size:
                        continue
                    file.seek(spot.start + int(run[0]) * width)
                    data = file.read(run.size * width)
                    if len(data) < run.size * width:
                        raise self.damaged("is cut off")
                    part = np.frombuffer(data, raw, len(data) // raw.itemsize)
                    found.append(part.reshape(run.size, *spot.shape[1:])[(slice(None), *inner)])
        except OSError as error:  # it was there when it was opened
            raise self.damaged(f"cannot be read: {cause(error)}") from error
        return np.concatenate(found) if len(found) > 2 else found[-1]

    def _own(self, key: str) -> str:
        return slice_key(key, self.first, self.first + self.rows)

    def damaged(self, found: str) -> ResultsFileError:
        """The error that says what was found of it."""
        return ResultsFileError(
            f"The shard {self._name} in {self._place} {found}.",
            f"'hookscope verify {self._place}' tells what else is damaged.",
        )


class Shards:
    """All shards of a folder, each opened when one of its rows is asked for.

    Args:
        place: the folder.
        told: what the manifest tells of them, in order.
        sums: hold all bytes of each against its CRC-32 before the first row of it is given.
    """

    def __init__(
        self, place: Location, told: Sequence[Mapping[str, Any]], sums: bool = False
    ) -> None:
        self._made_of = (place, told, sums)
        self._place, self._told = place, told
        self._unchecked = set(range(len(told))) if sums else set()
        self._ends = np.cumsum([one["rows"] for one in told], dtype=np.intp)
        self.open = lru_cache(MAX_OPEN)(lambda number: OpenShard(place, told[number]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, self._made_of

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
        """Return the bits of a part of some rows.

        Args:
            key: the tensor.
            shape: of one row.
            rows: ascending, each once.
            inner: a slice for each further dimension.
            mapped: read through a map of the file where there can be one. The system counts what
                was read so as this process's memory for as long as it has room.
        """
        dtype = self.open(0).spot(key, shape).dtype
        lengths = [len(range(n)[s]) for n, s in zip(shape, inner, strict=True)]
        found = np.empty((rows.size, *lengths), RAW[dtype])
        homes = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(homes):
            here = slice(*np.searchsorted(homes, [number, number + 1]))
            shard = self.open(int(number))
            if number in self._unchecked:
                self._check(int(number))
            spot = shard.spot(key, shape)
            if spot.dtype != dtype:
                raise shard.damaged(f"holds {key} as {spot.dtype}, and others as {dtype}")
            read = shard.take if mapped else shard.fetch
            found[here] = read(spot, rows[here] - shard.first, inner)
        return found

    def _check(self, number: int) -> None:
        shard = self.open(number)
        try:
            sound = is_intact(self._place, self._told[number])
        except OSError as error:
            raise shard.damaged(f"cannot be read: {cause(error)}") from error
        if not sound:
            raise shard.damaged("is damaged: its bytes are not those that were written")
        self._unchecked.discard(number)  # another thread may have checked it too


def _demand_whole(table: Mapping[str, Any], size: int) -> None:
    """Raise ValueError unless the tensors of a header fill ``size`` bytes and do not overlap."""
    end = 0
    for one in sorted(table.values(), key=lambda one: tuple(one["data_offsets"])):
        start, last = one["data_offsets"]
        item = np.dtype(RAW[one["dtype"]]).itemsize if one["dtype"] in RAW else None
        count = int(np.prod(one["shape"], dtype=object))
        if start != end or (item is not None and last - start != count * item):
            raise ValueError("its header is damaged")
        end = last
    if end != size:
        raise ValueError("its header is damaged")


def _map(file: Any) -> mmap.mmap | None:
    """The file as memory, if it lies on a disk."""
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (AttributeError, io.UnsupportedOperation):
        return None
