"""A result file that receives tensors while they are recorded, so that memory does not grow.

Tensors are copied into pages of the file that are mapped into memory. The operating system writes
the pages in the background; the process lets go of them at once. The header comes last: room for it
is reserved at the beginning of the file, and what is left of the room is filled with spaces.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from hookscope.errors import StoreError, cause
from hookscope.files import strict_json
from hookscope.files.atomic_files import replacement_file
from hookscope.files.safetensors_header import METADATA, header_bytes
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.tensors.nested import bits_of
from hookscope.tensors.save import REPAIR, SAFETENSORS_DTYPES, metadata_of, storable

HELD = 1 << 26  # bytes of recorded tensors that are kept in memory before others go to the file
ROOM = 1 << 21  # bytes for the header: about 2,500 tensors
_MAPPED = 1 << 28  # bytes that are mapped at a time
_ALIGNED = 8  # every tensor in the pages begins at a multiple of this, and has such a size


class RecordingFile(SignalSafeContext["RecordingFile"]):
    """The pages of a result file. Nothing is at its path before ``finish``.

    If a ``with`` block ends with an error, the unfinished file is removed. Otherwise that is done
    when nothing refers to this object. Tensors in the pages can be read even then.
    """

    def __init__(self, path: str | os.PathLike[str], held: int = HELD) -> None:
        self.path = Path(path)
        self._left = held
        self._stack = ExitStack()
        self._abandoned = weakref.finalize(self, _abandon, self._stack)
        self._file: BinaryIO | None = None
        # All are kept: no other tensor may get the address of one in the file.
        self._maps: list[mmap.mmap] = []
        self._first = 0  # the offset of the newest map in the file
        self._end = 8 + ROOM
        self._places: dict[int, int] = {}  # the offset of a tensor by the address of its values
        self._lock = threading.Lock()  # replicas of a model run on threads

    def _enter(self) -> RecordingFile:
        return self

    def _leave(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            self._abandoned()

    @staticmethod
    def is_supported() -> bool:
        """Whether the operating system can reserve room on the disk, and let go of pages."""
        return hasattr(os, "posix_fallocate") and hasattr(mmap, "MADV_DONTNEED")

    def clone(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor, in memory or in the file."""
        size = tensor.numel() * tensor.element_size()
        with self._lock:
            if size <= self._left or not _fits(tensor, size):
                self._left -= size
                return tensor.clone()
            place = self._reserve(size)
            copy = torch.frombuffer(
                self._maps[-1], dtype=tensor.dtype, count=tensor.numel(), offset=place - self._first
            ).reshape(tensor.shape)
            self._places[_address(copy)] = place
        return copy.copy_(tensor)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor that ``clone`` returned is in the file."""
        return _address(tensor) in self._places

    def release(self, tensor: Tensor) -> None:
        """Let go of the pages of the newest tensor; they are read again where they are needed."""
        with self._lock:
            place = self._places.get(_address(tensor), -1) - self._first
            if not self._maps or place < 0:
                return
            first = -(-place // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (place + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if end > first:
                self._maps[-1].madvise(mmap.MADV_DONTNEED, first, end - first)

    def finish(self, tensors: Mapping[str, Tensor], info: dict[str, Any]) -> dict[str, Tensor]:
        """Write the header and the tensors that are in memory; return those in the file by key.

        What is returned can be changed without a change of the file. It is empty, and nothing is
        written, if the tensors or the header do not fit such a file, or the file was removed.
        """
        places = {key: self._places.get(_address(tensor)) for key, tensor in tensors.items()}
        inside = {key: place for key, place in places.items() if place is not None}
        held = {key: storable(tensors[key]) for key in places.keys() - inside.keys()}
        stored = {key: tensor for key, (tensor, _) in held.items()}
        # The widest dtypes first, so that each tensor begins at a multiple of its item size.
        order = sorted(stored, key=lambda key: (-stored[key].element_size(), key))
        notes = {key: note for key, (_, note) in sorted(held.items()) if note}
        known = all(tensor.dtype in SAFETENSORS_DTYPES for tensor in stored.values())
        if not (self._abandoned.alive and known and inside and len(inside) == len(self._places)):
            return {}
        table: dict[str, Any] = {METADATA: metadata_of(info, notes)}
        for key, place in sorted(inside.items(), key=lambda entry: entry[1]):
            table[key] = _entry(tensors[key], place - 8 - ROOM)
        end = self._end
        for key in order:
            table[key] = _entry(stored[key], end - 8 - ROOM)
            end += stored[key].nbytes
        header = strict_json.dumps(table).encode()
        if len(header) > ROOM:
            return {}
        assert self._file is not None
        with self._stack:
            self._file.truncate(self._end)
            self._file.seek(0)
            self._file.write(header_bytes(header, ROOM))
            self._file.seek(self._end)
            for key in order:
                self._file.write(bits_of(stored[key]).numpy().data)
        self._abandoned.detach()
        return {key: self._private(tensors[key], place) for key, place in inside.items()}

    def _reserve(self, size: int) -> int:
        """The offset of ``size`` new bytes of the file, which are in the map."""
        try:
            if self._file is None:
                scratch = self._stack.enter_context(replacement_file(self.path, REPAIR))
                self._file = self._stack.enter_context(scratch.open("r+b"))
            if not self._maps or self._end + size > self._first + len(self._maps[-1]):
                first = self._end // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
                length = max(_MAPPED, self._end - first + size)
                os.ftruncate(self._file.fileno(), first + length)
                self._maps.append(mmap.mmap(self._file.fileno(), length, offset=first))
                self._first = first
            # Writing to a page that the disk has no room for would end the process.
            os.posix_fallocate(self._file.fileno(), self._end, size)
        except OSError as error:
            raise StoreError(
                f"Cannot write {self.path}: {cause(error)}.", f"Nothing was written. {REPAIR}"
            ) from error
        place, self._end = self._end, self._end + size
        return place

    def _private(self, tensor: Tensor, place: int) -> Tensor:
        """The values of a tensor from the finished file, in pages that are copied when written."""
        pages = np.memmap(self.path, np.uint8, "c", offset=place, shape=(tensor.nbytes,))
        return torch.from_numpy(pages).view(tensor.dtype).reshape(tensor.shape)


def _abandon(stack: ExitStack) -> None:
    """Remove the unfinished file."""
    stack.__exit__(GeneratorExit, GeneratorExit(), None)


def _address(tensor: Tensor) -> int:
    """The address of the values of a plain tensor; 0 for others."""
    plain = type(tensor) is Tensor and tensor.layout is torch.strided
    return tensor.data_ptr() if plain else 0


def _fits(tensor: Tensor, size: int) -> bool:
    """Whether a tensor can be copied into the pages as it is."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    here = tensor.device.type == "cpu" and not tensor.is_quantized and not tensor.is_conj()
    aligned = size > 0 and size % _ALIGNED == 0
    return plain and here and aligned and tensor.dtype in SAFETENSORS_DTYPES


def _entry(tensor: Tensor, start: int) -> dict[str, Any]:
    return {
        "dtype": SAFETENSORS_DTYPES[tensor.dtype],
        "shape": list(tensor.shape),
        "data_offsets": [start, start + tensor.nbytes],
    }
