"""Writing shards: safetensors files whose size is known before the first row, filled as rows come.

A file is laid out at once and each batch is written to its places, so that no more than a batch is
in memory; it gets its name once it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from torch import Tensor

from hookscope.extraction.planning import Shard
from hookscope.files import strict_json
from hookscope.results.features.folder import crc32_in, slice_key
from hookscope.results.features.location import Place
from hookscope.specs.output_path import MARK
from hookscope.tensors.nested import bits_of

# What the format calls each dtype. https://github.com/huggingface/safetensors#format
NAMES = {
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
class Stored:
    """A key of the shards: the shape of one row, and the dtype."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size of one row."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Growing(Protocol):
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

    def __init__(self, place: Place, shard: Shard, stored: Sequence[Stored]) -> None:
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
        return take(self.place, self.shard.name, self.scratch, self.shard)

    def discard(self) -> None:
        """Leave nothing of it."""
        with suppress(OSError):  # of a full disk, where the last of it does not go
            self._file.close()
        self.scratch.unlink(missing_ok=True)


def take(place: Place, name: str, scratch: Path, rows: Shard) -> dict[str, Any]:
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


def _header(shard: Shard, stored: Sequence[Stored]) -> tuple[bytes, dict[str, int]]:
    """The beginning of a shard's file, and where in the file each key's first row goes."""
    told = {"schema": 1, "rows": [shard.first, shard.last], "keys": [one.key for one in stored]}
    table: dict[str, Any] = {"__metadata__": {MARK: strict_json.dumps(told, sort_keys=True)}}
    offsets: dict[str, int] = {}
    end = 0
    # The widest types first: then each tensor lies at a multiple of the size of its values.
    for one in sorted(stored, key=lambda one: -one.dtype.itemsize):
        offsets[one.key], end = end, end + one.bytes * shard.rows
        table[slice_key(one.key, shard.first, shard.last)] = {
            "dtype": NAMES[one.dtype],
            "shape": [shard.rows, *one.shape],
            "data_offsets": [offsets[one.key], end],
        }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {k: start + v for k, v in offsets.items()}
