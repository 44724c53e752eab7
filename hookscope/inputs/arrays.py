"""Arrays saved by numpy: ``.npy``, and ``.npz`` with one or several. Nothing is unpickled."""

from __future__ import annotations

import io
import math
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.errors import InputError
from hookscope.files.detect import ARRAY, ARRAYS, SAVE_STORED, TOO_LARGE, describe_bytes
from hookscope.inputs.keys import one_of
from hookscope.inputs.reading import Asked, blaming, read_bytes, sha256
from hookscope.specs.input import InputWord

_MAGIC = b"\x93NUMPY"
_SAVE_NUMBERS = "Save numbers: numpy.save(FILE, array.astype('float32'))."


def open_one(asked: Asked, word: InputWord) -> tuple[Any, str]:
    """Return the array in a file, or of several a dict by their names, as tensors.

    Arrays that ``numpy.savez`` was given without names are a tuple, in their order.

    Raises:
        InputError: the file is damaged, holds objects or text, or has no array of the name wanted.
    """
    data = read_bytes(word.path)
    with blaming(word.path, ARRAY):
        if data.startswith(_MAGIC):
            return tensor_of(_array(data), word.path), sha256(data)
    kind = describe_bytes(data)
    if kind in TOO_LARGE:
        raise InputError(f"The file {word.path!r} is {kind}.", SAVE_STORED)
    with blaming(word.path, ARRAYS):
        return _from_archive(data, word), sha256(data)


def _from_archive(data: bytes, word: InputWord) -> Any:
    with ZipFile(io.BytesIO(data)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        wanted = [one_of(word, names)] if word.rest or len(names) < 2 else names
        found = {name: _array(archive.read(f"{name}.npy")) for name in wanted}
    tensors = {name: tensor_of(array, word.path) for name, array in found.items()}
    if len(tensors) == 1:
        return tensors[wanted[0]]
    if all(name == f"arr_{n}" for n, name in enumerate(wanted)):
        return tuple(tensors.values())
    return tensors


def _array(data: bytes) -> NDArray[Any]:
    """The array in the bytes of a ``.npy`` file; numpy's own reader believes any length told."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are not opened")
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape is {shape}")
    flat = np.frombuffer(data, dtype, count=math.prod(shape), offset=file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def tensor_of(array: Any, path: str) -> Tensor:
    """Return a tensor with the values of an array, in the byte order of this machine.

    Raises:
        InputError: it holds no numbers that PyTorch has.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufc":
        kind = getattr(array, "dtype", type(array).__name__)
        raise InputError(f"The file {path!r} holds no numbers but {kind}.", _SAVE_NUMBERS)
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except TypeError as exc:
        raise InputError(
            f"The file {path!r} holds {array.dtype}, which PyTorch has not.", _SAVE_NUMBERS
        ) from exc
