"""The records of a zip archive: where they lie in its file, and whether each is complete.

``torch.save`` and ``numpy.savez`` store records as they are. An archive that was packed again has
compressed ones, which are read as a stream.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from dataclasses import dataclass
from typing import IO

from hookscope.errors import WeightsFileError
from hookscope.files import file_types
from hookscope.files.file_types import CROWDED_ARCHIVE, is_crowded
from hookscope.files.pickle_scan import DAMAGED_ZIP, LONGEST_PICKLE, DamagedPickle, LongPickle
from hookscope.stores.weights.torch_pickle import TorchUnpickler

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name and of the extra field
_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 1

# The pickles that PyTorch reads tensors of; the storages of one are in the folder of its name.
# PyTorch itself leaves out the values of the inputs that a traced model was saved with.
_PICKLES = ("data.pkl", "constants.pkl")


class DamagedArchive(ValueError):
    """A record is missing, damaged or packed in an unusual way."""


@dataclass(frozen=True)
class ByteRange:
    """Bytes of a file, or of a compressed record of it."""

    offset: int
    size: int
    record: str = ""


def check_record_size(name: str, size: int, needed: int) -> None:
    """Raise DamagedArchive if the record of a storage is shorter than its tensors need."""
    if size < needed:
        raise DamagedArchive(
            f"its record {name!r} has {size:,} bytes, and its tensor needs {needed:,}"
        )


class ZipRecords:
    """The records of a zip archive by name."""

    def __init__(self, path: str) -> None:
        kind, hint = file_types.check_zip(path)
        if kind:
            raise WeightsFileError(f"The file {path!r} is {kind}.", hint)
        self._path = path
        self._size = os.path.getsize(path)
        with zipfile.ZipFile(path) as archive:
            self._infos = {info.filename: info for info in archive.infolist()}

    def names(self) -> list[str]:
        """Return the names of all records in the order of the archive."""
        return list(self._infos)

    def folder_of(self, name: str) -> str:
        """Return the folder in the archive that has a record of that name, with a slash."""
        for path in self._infos:
            folder, _, last = path.rpartition("/")
            if last == name:
                return f"{folder}/" if folder else ""
        raise DamagedArchive(f"it has no record {name!r}")

    def content(self, name: str, limit: int) -> bytes:
        """Return the bytes of a record of at most ``limit`` bytes."""
        self._info(name)
        with zipfile.ZipFile(self._path) as archive, archive.open(name) as record:
            data = record.read(limit + 1)
        if len(data) > limit:
            raise LongPickle(f"its record {name!r} has more than {limit:,} bytes")
        return data

    def text(self, name: str, otherwise: str) -> str:
        """Return the text of a short record, or ``otherwise`` if there is none."""
        if name not in self._infos:
            return otherwise
        return self.content(name, 100).decode("ascii", "replace").strip()

    def range(self, name: str) -> ByteRange:
        """Return where the bytes of a record are."""
        info = self._info(name)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            return ByteRange(0, info.file_size, name)
        with open(self._path, "rb") as file:
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size or not header.startswith(_SIGNATURE):
            raise DamagedArchive(f"its record {name!r} has no header")
        _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        offset = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        if info.compress_size != info.file_size or offset + info.file_size > self._size:
            raise DamagedArchive(f"its record {name!r} is beyond the end of the file")
        return ByteRange(offset, info.file_size)

    def _info(self, name: str) -> zipfile.ZipInfo:
        info = self._infos.get(name)
        if info is None:
            raise DamagedArchive(f"it has no record {name!r}")
        if info.flag_bits & _ENCRYPTED:
            raise DamagedArchive(f"its record {name!r} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DamagedArchive(f"its record {name!r} is packed in a way that is not read")
        return info


def check_record_sizes(file: str | IO[bytes]) -> None:
    """Raise DamagedArchive if a record of an archive is shorter than a tensor in it."""
    if isinstance(file, str):
        with open(file, "rb") as opened:
            return check_record_sizes(opened)
    if not zipfile.is_zipfile(file):
        return
    if is_crowded(file):
        raise DamagedArchive(f"it is {CROWDED_ARCHIVE}")
    try:
        with zipfile.ZipFile(file) as archive:
            _check_archive(archive)
    except DAMAGED_ZIP as error:
        if isinstance(error, DamagedArchive):
            raise
        raise DamagedArchive("a record of its zip archive is damaged") from error
    finally:
        file.seek(0)


def _check_archive(archive: zipfile.ZipFile) -> None:
    # PyTorch's reader ignores the case of names, and a name may occur twice.
    sizes: dict[str, int] = {}
    for info in archive.infolist():
        name = info.filename.lower()
        sizes[name] = min(info.file_size, sizes.get(name, info.file_size))
    for name in archive.namelist():
        folder, _, last = name.rpartition("/")
        if last.lower() not in _PICKLES or "/" in folder:
            continue
        for key, needed in _needed(archive, name).items():
            record = f"{name[: -len('.pkl')]}/{key}"
            check_record_size(record, sizes.get(record.lower(), needed), needed)


def _needed(archive: zipfile.ZipFile, name: str) -> dict[str, int]:
    """The bytes that the storages of a pickle need by key."""
    with archive.open(name) as record:
        data = record.read(LONGEST_PICKLE + 1)
    if len(data) > LONGEST_PICKLE:
        raise DamagedArchive(f"its record {name} has more than {LONGEST_PICKLE:,} bytes")
    unpickler = TorchUnpickler(io.BytesIO(data))
    try:
        unpickler.load()
    except LongPickle as error:
        raise DamagedArchive(f"its record {name} is too large: {error}") from error
    except DamagedPickle as error:
        raise DamagedArchive(f"its record {name} is not a valid pickle: {error}") from error
    return unpickler.needed
