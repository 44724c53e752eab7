"""The files beside an ONNX file that contain its large tensors, checked before anything reads them.

A location is a path relative to the file's folder. A crafted one could lead to any file of the
machine, and a crafted length to more memory than there is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from blake3 import blake3

from hookscope.errors import ModelError
from hookscope.escapes import encodable
from hookscope.files.weight_files import blake3_of

_LONGEST_LOCATION = 4096  # characters
_COMPLETE = "Keep the ONNX file and its data files in one folder, or export the model again."


@dataclass(frozen=True)
class ExternalTensor:
    """Where the values of a tensor are."""

    path: str
    offset: int
    length: int


class ExternalData:
    """Finds tensors in the files beside an ONNX file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}  # of the files that were checked

    def locate(self, tensor: Any, size: int) -> ExternalTensor:
        """Return where the values of an external tensor are."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        target = os.path.join(os.path.dirname(self._path), location)
        if location not in self._sizes:
            self._sizes[location] = self._checked_size(tensor.name, location, target)
        try:
            offset, length = (int(entries.get(k, d)) for k, d in (("offset", 0), ("length", size)))
        except ValueError:
            offset = length = -1
        if offset < 0 or length != size or offset + length > self._sizes[location]:
            raise ModelError(
                f"The tensor {tensor.name!r} of {self._path!r} has {size:,} bytes, which are not in"
                f" {location!r}.",
                _COMPLETE,
            )
        return ExternalTensor(target, offset, length)

    def _checked_size(self, name: str, location: str, target: str) -> int:
        """The size of a data file, which must be in the folder."""
        if not location or _leaves(location) or not _is_beside(self._path, target):
            raise ModelError(
                f"The tensor {name!r} of {self._path!r} is in {location[:200]!r}, which is not a"
                " file in its folder.",
                "Such a path is not opened. Export the model again, from a source that you trust.",
            )
        if not os.path.isfile(target):
            raise ModelError(
                f"{self._path!r} needs {location!r} in its folder, which does not exist.", _COMPLETE
            )
        return os.path.getsize(target)


def _leaves(location: str) -> bool:
    """Whether a path is absolute or leads upwards, on any system, or is not a path."""
    windows, posix = PureWindowsPath(location), PurePosixPath(location)
    leads_away = windows.drive or windows.root or posix.root or ".." in windows.parts
    return bool(leads_away) or "\0" in location or len(location) > _LONGEST_LOCATION


def _is_beside(path: str, target: str) -> bool:
    """Whether links lead no further than the folder of the file, or that of its own target.

    A hub's cache has links to files of other names, all of which are in one folder.
    """
    real = os.path.realpath(target)
    homes = {
        os.path.realpath(os.path.dirname(path) or "."),
        os.path.dirname(os.path.realpath(path)),
    }
    return any(os.path.commonpath((home, real)) == home for home in homes)


def hash_of(path: str, files: Iterable[str]) -> str:
    """Return the BLAKE3 of an ONNX file and its data files.

    Without data files it is that of the file. Otherwise it is the BLAKE3 of the output of ``b3sum
    FILE DATA ...`` in the folder, with the data files in order of name.
    """
    others = sorted(set(files))
    if not others:
        return blake3_of(path)
    folder = os.path.dirname(path) or "."
    names = (os.path.relpath(file, folder).replace(os.sep, "/") for file in (path, *others))
    lines = zip((path, *others), names, strict=True)
    listing = "".join(f"{blake3_of(file)}  {name}\n" for file, name in lines)
    return blake3(encodable(listing).encode()).hexdigest()


def byte_count(shape: Iterable[int], bits: int) -> int:
    """Return the number of bytes of a tensor, in which entries of under 8 bits share bytes.

    >>> byte_count((3, 5), 32), byte_count((3,), 4)
    (60, 2)
    """
    return math.ceil(math.prod(shape) * bits / 8)
