"""Arrays saved by numpy: ``.npy``, and ``.npz`` with one or several. Nothing is unpickled."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from hookscope.errors import InputError
from hookscope.files import file_types as filekinds
from hookscope.files.file_types import (
    ARRAY,
    ARRAYS,
    SAFETENSORS,
    STORE_UNCOMPRESSED,
    TOO_LARGE,
    describe_bytes,
)
from hookscope.files.weight_files import sha256_of
from hookscope.inputs.input_reader import ReadContext, decoding_errors, read_bytes, sha256
from hookscope.specs.input_spec import InputSpec
from hookscope.specs.output_path import MARK
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors.nested import walk

_MAGIC = b"\x93NUMPY"

_SAVE_NUMBERS = "Save numbers: numpy.save(FILE, array.astype('float32'))."


def read_numpy(asked: ReadContext, word: InputSpec) -> tuple[Any, str]:
    """Return the array in a file, or of several a dict by their names, as tensors.

    Arrays that ``numpy.savez`` was given without names are a tuple, in their order.

    Raises:
        InputError: the file is damaged, holds objects or text, or has no array of the name wanted.
    """
    data = read_bytes(word.path)
    with decoding_errors(word.path, ARRAY):
        if data.startswith(_MAGIC):
            return tensor_from_array(_array(data), word.path), sha256(data)
    kind = describe_bytes(data)
    if kind in TOO_LARGE:
        raise InputError(f"The file {word.path!r} is {kind}.", STORE_UNCOMPRESSED)
    with decoding_errors(word.path, ARRAYS):
        return _from_archive(data, word), sha256(data)


def _from_archive(data: bytes, word: InputSpec) -> Any:
    with ZipFile(io.BytesIO(data)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        wanted = [pick_tensor(word, names)] if word.rest or len(names) < 2 else names
        found = {name: _array(archive.read(f"{name}.npy")) for name in wanted}
    tensors = {name: tensor_from_array(array, word.path) for name, array in found.items()}
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


def tensor_from_array(array: Any, path: str) -> Tensor:
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


def read_safetensors(asked: ReadContext, word: InputSpec) -> tuple[Any, str]:
    """Return the tensor of a key, the only one, or of a file that is no capture a dict of all.

    Raises:
        InputError: the file is damaged or has no such key, or it is a capture and no key is given.
    """
    with decoding_errors(word.path, SAFETENSORS), safe_open(word.path, framework="pt") as file:
        names = list(file.keys())
        recorded = MARK in (file.metadata() or {})
        if word.rest or len(names) < 2 or recorded:
            value: Any = file.get_tensor(pick_tensor(word, names))
        else:
            value = {name: file.get_tensor(name) for name in names}
    return value, sha256_of(word.path)


_BEYOND = 1 << 30  # bytes that a tensor may take beyond the size of its file


def read_torch(asked: ReadContext, word: InputSpec) -> tuple[Any, str]:
    """Return what was saved: a tensor, or a tuple, list or dict that holds some.

    Raises:
        InputError: the file is damaged, would run code, holds no tensor, or none of the key wanted.
    """
    data = read_bytes(word.path)
    kind, repair = filekinds.describe_file(word.path)
    no_tensors = (filekinds.SCRIPT_ARCHIVE, filekinds.EXPORT_ARCHIVE)
    if kind in (*no_tensors, *filekinds.TOO_LARGE) or "pickled Python" in kind:
        raise InputError(f"The file {word.path!r} is {kind}, not tensors.", repair)
    with decoding_errors(word.path, "tensors saved by torch.save"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if word.rest:
        if not isinstance(value, Mapping):
            raise InputError(f"{word.path!r} holds no names, so no {word.rest!r}.", "Leave it out.")
        named = {str(name): item for name, item in value.items()}  # keys may be numbers
        value = named[pick_tensor(word, list(named))]
    if isinstance(value, Mapping):
        value = dict(value)
    for _, tensor in walk(value):
        # One number may stand for any many: expanded, a tensor is small in its file alone.
        dense = tensor.layout is torch.strided and not tensor.is_meta
        if dense and tensor.numel() * tensor.element_size() > len(data) + _BEYOND:
            raise InputError(
                f"The file {word.path!r} of {len(data):,} bytes holds a tensor of shape"
                f" {tuple(tensor.shape)}, which would take more than 1 GB beyond that.",
                "Save a smaller one, or a copy of it: tensor.clone().",
            )
    if not any(True for _ in walk(value)):
        raise InputError(f"The file {word.path!r} holds no tensor.", "Save one by torch.save.")
    return value, sha256(data)


_MAKERS: dict[str, Callable[[InputSpec, torch.Generator], Tensor]] = {
    "random": lambda word, source: torch.randn(word.shape, generator=source),
    "zeros": lambda word, source: torch.zeros(word.shape),
    "ones": lambda word, source: torch.ones(word.shape),
    "ints": lambda word, source: torch.randint(*word.bounds, word.shape, generator=source),
}


def generate_tensor(asked: ReadContext, word: InputSpec) -> tuple[Tensor, None]:
    """Return the tensor of a word: float32, or int64 for ``ints``.

    Raises:
        InputError: it does not fit into memory.
    """
    try:
        return _MAKERS[word.rest](word, asked.source), None
    except (RuntimeError, MemoryError) as exc:  # what torch raises where memory gives out
        raise InputError(
            f"{word.word} cannot be made: there is no memory for it.", "Give a smaller shape."
        ) from exc


_SHOWN = 5


def pick_tensor(word: InputSpec, names: Sequence[str]) -> str:
    """Return the name that a word asks for, or the only one there is.

    Raises:
        InputError: there is none of that name, or several to choose from.
    """
    if word.rest in names:
        return word.rest
    if not word.rest and len(names) == 1:
        return names[0]
    listing = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    holds = f"It holds {listing}." if names else "It holds nothing."
    if word.rest:
        raise InputError(
            f"There is no {word.rest!r} in {word.path!r}.",
            f"{did_you_mean(word.rest, names)} {holds}".strip(),
        )
    raise InputError(
        f"{word.path!r} holds {len(names)} tensors: which one to take is not clear.",
        f"{holds} Write {word.path}:{names[0] if names else 'KEY'} for one of them.",
    )
