"""Arrays in numpy's own files: ``.npy`` holds one array, ``.npz`` several by their names.

Values come in pieces, so that memory does not grow with them. Equal arrays give equal bytes: numpy
itself writes the time into a ``.npz`` file. Nothing about a recording stands in either; a comment
at the end of a ``.npz`` file says that hookscope wrote it. Without torch.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.specs.output_path import MARK, NPY, NPZ, SUFFIX

_LONGEST = 60_000  # bytes of a name; a zip archive has room for 65,535
_SHOWN = 8  # names that an error lists


class ArrayEntry(NamedTuple):
    """One array to be written: its values in row-major order, in pieces of any shape."""

    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]


def write_arrays(path: Path, ending: str, entries: Iterable[ArrayEntry]) -> None:
    """Write ``entries`` as ``.npy``, which takes just one, or ``.npz``.

    Raises:
        ValueError: two names are the same in an archive, or one is too long for it.
    """
    if ending == NPY:
        [entry] = entries
        with path.open("wb") as file:
            _write_array(file, entry)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = MARK.encode()
        for entry in entries:
            _write_array_to(archive, entry)


def check_single(keys: Iterable[str], ending: str, what: str) -> None:
    """Make sure that a ``.npy`` file is to hold one array.

    Args:
        keys: of the arrays.
        ending: of the file.
        what: what the arrays are, in the plural.

    Raises:
        RequestError: there are several, or none.
    """
    names = list(keys)
    if ending != NPY or len(names) == 1:
        return
    listed = ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )
    found = f"{len(names)} {what}: {listed}" if names else f"no {what}"
    raise RequestError(
        f"A {NPY} file holds one array, and there are {found}.",
        f"Choose one with --layer, or write a {NPZ} or {SUFFIX} file.",
    )


def _write_array_to(archive: zipfile.ZipFile, entry: ArrayEntry) -> None:
    name = entry.key.replace("\0", r"\x00") + NPY  # a zip archive ends a name at a zero
    if name in archive.NameToInfo:
        raise ValueError(f"two arrays would be called {entry.key!r}")
    if len(name.encode()) > _LONGEST:
        raise ValueError(f"the name {entry.key[:40]!r}... is too long for an archive")
    # The date of a ZipInfo of its own is always the same.
    with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as file:
        _write_array(file, entry)


def _write_array(file: IO[bytes], entry: ArrayEntry) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(entry.dtype),
        "fortran_order": False,
        "shape": entry.shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    for piece in entry.pieces:
        if piece.size:
            file.write(np.ascontiguousarray(piece, entry.dtype).data)
