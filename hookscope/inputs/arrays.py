"""Arrays saved by numpy: ``.npy``, and ``.npz`` with one or several. Nothing is unpickled."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookscope.errors import InputError
from hookscope.filekinds import ARRAY
from hookscope.inputs.keys import one_of
from hookscope.inputs.reading import Asked, blaming, read_bytes, sha256
from hookscope.inputs.words import InputWord

_SAVE_NUMBERS = "Save numbers: numpy.save(FILE, array.astype('float32'))."


def open_one(asked: Asked, word: InputWord) -> tuple[Any, str]:
    """Return the array in a file, or of several a dict by their names, as tensors.

    Arrays that ``numpy.savez`` was given without names are a tuple, in their order.

    Raises:
        InputError: the file is damaged, holds objects or text, or has no array of the name wanted.
    """
    data = read_bytes(word.path)
    with blaming(word.path, ARRAY):
        if data[:6] != b"\x93NUMPY":
            return _from_archive(data, word), sha256(data)
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        return tensor_of(array, word.path), sha256(data)


def _from_archive(data: bytes, word: InputWord) -> Any:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds no arrays")
        names = list(archive.files)
        wanted = [one_of(word, names)] if word.rest or len(names) == 1 else names
        found = {name: tensor_of(archive[name], word.path) for name in wanted}
    if len(found) == 1:
        return found[wanted[0]]
    if wanted and all(name == f"arr_{n}" for n, name in enumerate(wanted)):
        return tuple(found.values())
    return found


def tensor_of(array: Any, path: str) -> Tensor:
    """Return a tensor with the values of an array, in the byte order of this machine.

    Raises:
        InputError: it holds no numbers that PyTorch has.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufc":
        kind = getattr(array, "dtype", type(array).__name__)
        raise InputError(f"The file {path!r} holds no numbers but {kind}.", _SAVE_NUMBERS)
    try:
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))
    except TypeError as exc:
        raise InputError(
            f"The file {path!r} holds {array.dtype}, which PyTorch has not.", _SAVE_NUMBERS
        ) from exc
