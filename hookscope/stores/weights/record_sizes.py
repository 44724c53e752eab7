"""Whether the records of a zip archive have as many bytes as the tensors in its pickles need.

PyTorch's readers are written in C++. They take the sizes from the pickle, and read memory beyond a
record that is shorter.
"""

from __future__ import annotations

import io
import zipfile
from typing import IO

from hookscope.files.file_types import CROWDED_ARCHIVE, is_crowded
from hookscope.files.pickle_scan import DAMAGED_ZIP, LONGEST_PICKLE, DamagedPickle, LongPickle
from hookscope.stores.weights.torch_pickle import TorchUnpickler
from hookscope.stores.weights.zip_records import DamagedArchive, check_record_size

# The pickles that PyTorch reads tensors of; the storages of one are in the folder of its name.
# PyTorch itself leaves out the values of the inputs that a traced model was saved with.
_PICKLES = ("data.pkl", "constants.pkl")


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
