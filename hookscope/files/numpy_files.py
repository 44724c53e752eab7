"""Writing numpy's files in blocks: ``.npy`` has one array, ``.npz`` several arrays by name.

Equal arrays give equal bytes, unlike ``numpy.savez``, which writes the time. A comment at the end
of a ``.npz`` file marks it as written by hookscope.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.files.output_path import MARK, NPY, NPZ, SUFFIX
from hookscope.files.words import join_first

_LONGEST_NAME = 60_000  # bytes; a zip archive allows 65,535
_SHOWN = 8  # names that an error lists


class ArrayEntry(NamedTuple):
    """An array to be written: its values in row-major order, in blocks of any shape."""

    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]


def write_arrays(path: Path, ending: str, entries: Iterable[ArrayEntry]) -> None:
    """Write ``entries`` as ``.npy``, which has exactly one array, or as ``.npz``."""
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
    """Check that there is exactly one array if the file is a ``.npy`` file."""
    names = list(keys)
    if ending != NPY or len(names) == 1:
        return
    count = f"{len(names)} {what}: {join_first(names, _SHOWN)}" if names else f"no {what}"
    raise RequestError(
        f"A {NPY} file stores one array, but there are {count}.",
        f"Choose one with --layer, or write a {NPZ} or {SUFFIX} file.",
    )


def _write_array_to(archive: zipfile.ZipFile, entry: ArrayEntry) -> None:
    name = entry.key.replace("\0", r"\x00") + NPY  # zero would end the name in a zip archive
    if name in archive.NameToInfo:
        raise ValueError(f"two arrays would have the name {entry.key!r}")
    if len(name.encode()) > _LONGEST_NAME:
        raise ValueError(f"the name {entry.key[:40]!r}... is too long for an archive")
    # A new ZipInfo always has the same date.
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
