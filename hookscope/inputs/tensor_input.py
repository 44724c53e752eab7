"""Tensors from numpy, safetensors and torch files, or generated. No pickled code is run."""

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
from hookscope.files.file_types import (
    ARRAY,
    ARRAYS,
    EXPORT_ARCHIVE,
    SAFETENSORS,
    SCRIPT_ARCHIVE,
    STORE_UNCOMPRESSED,
    TOO_LARGE,
    describe_bytes,
    describe_file,
)
from hookscope.files.hashes import sha256_of
from hookscope.files.output_path import MARK
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import list_first
from hookscope.inputs.input_reader import ReadContext, decoding_errors, read_bytes, sha256
from hookscope.specs.input_spec import InputSpec
from hookscope.stores.weights.zip_records import check_record_sizes
from hookscope.tensors.nested import walk
from hookscope.tensors.torch_release import READS_PICKLES, reads_pickles_safely, unsafe_pickle

_NPY_MAGIC = b"\x93NUMPY"
_MAX_NAMES = 5  # in an error
_MAX_EXPANDED = 1 << 30  # bytes of memory of a tensor beyond the size of its file
_SAVE_NUMBERS = "Save numbers: numpy.save(FILE, array.astype('float32'))."


def pick_tensor(spec: InputSpec, names: Sequence[str]) -> str:
    """Return the name that a spec gives after the file, or the only name in the file."""
    if spec.rest in names:
        return spec.rest
    if not spec.rest and len(names) == 1:
        return names[0]
    holds = f"It contains {list_first(names, _MAX_NAMES)}." if names else "It is empty."
    if spec.rest:
        raise InputError(
            f"There is no {spec.rest!r} in {spec.path!r}.",
            f"{did_you_mean(spec.rest, names)} {holds}".strip(),
        )
    raise InputError(
        f"{spec.path!r} contains {len(names)} tensors; name one.",
        f"{holds} For example: {spec.path}:{names[0] if names else 'KEY'}",
    )


def read_numpy(context: ReadContext, spec: InputSpec) -> tuple[Any, str]:
    """Return the array in a ``.npy`` or ``.npz`` file; several are a dict or, unnamed, a tuple."""
    data = read_bytes(spec.path)
    with decoding_errors(spec.path, ARRAY):
        if data.startswith(_NPY_MAGIC):
            return tensor_from_array(_array(data), spec.path), sha256(data)
    kind = describe_bytes(data)
    if kind in TOO_LARGE:
        raise InputError(f"The file {spec.path!r} is {kind}.", STORE_UNCOMPRESSED)
    with decoding_errors(spec.path, ARRAYS):
        return _from_archive(data, spec), sha256(data)


def _from_archive(data: bytes, spec: InputSpec) -> Any:
    with ZipFile(io.BytesIO(data)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        wanted = [pick_tensor(spec, names)] if spec.rest or len(names) < 2 else names
        arrays = {name: _array(archive.read(f"{name}.npy")) for name in wanted}
    tensors = {name: tensor_from_array(array, spec.path) for name, array in arrays.items()}
    if len(tensors) == 1:
        return tensors[wanted[0]]
    if all(name == f"arr_{n}" for n, name in enumerate(wanted)):
        return tuple(tensors.values())
    return tensors


def _array(data: bytes) -> NDArray[Any]:
    """The array in the bytes of a ``.npy`` file. numpy's reader does not check the header."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise ValueError("it contains pickled objects, which are not opened")
    if any(length < 0 for length in shape):
        raise ValueError(f"the shape {shape} is not valid")
    flat = np.frombuffer(data, dtype, count=math.prod(shape), offset=file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def tensor_from_array(array: Any, path: str) -> Tensor:
    """Return a tensor with the values of an array, in native byte order."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufc":
        kind = getattr(array, "dtype", type(array).__name__)
        raise InputError(f"The file {path!r} contains {kind}, not numbers.", _SAVE_NUMBERS)
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except TypeError as exc:
        raise InputError(
            f"The file {path!r} contains {array.dtype}, which PyTorch does not support.",
            _SAVE_NUMBERS,
        ) from exc


def read_safetensors(context: ReadContext, spec: InputSpec) -> tuple[Any, str]:
    """Return the tensor of the given key, or the only one, or a dict; a capture needs a key."""
    with decoding_errors(spec.path, SAFETENSORS), safe_open(spec.path, framework="pt") as file:
        names = list(file.keys())
        is_capture = MARK in (file.metadata() or {})
        if spec.rest or len(names) < 2 or is_capture:
            value: Any = file.get_tensor(pick_tensor(spec, names))
        else:
            value = {name: file.get_tensor(name) for name in names}
    return value, sha256_of(spec.path)


def read_torch(context: ReadContext, spec: InputSpec) -> tuple[Any, str]:
    """Return what ``torch.save`` saved: a tensor, or a tuple, list or dict that holds tensors."""
    data = read_bytes(spec.path)
    kind, hint = describe_file(spec.path)
    if kind in (SCRIPT_ARCHIVE, EXPORT_ARCHIVE, *TOO_LARGE) or "pickled Python" in kind:
        raise InputError(f"The file {spec.path!r} is {kind}, not tensors.", hint)
    if not reads_pickles_safely():
        raise InputError(
            unsafe_pickle(spec.path),
            f"Save the tensors as .npy or .safetensors, or install torch {READS_PICKLES} or newer.",
        )
    with decoding_errors(spec.path, "tensors saved by torch.save"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_record_sizes(io.BytesIO(data))
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if spec.rest:
        if not isinstance(value, Mapping):
            raise InputError(
                f"There is no {spec.rest!r} in {spec.path!r}, which has no keys.", "Leave it out."
            )
        named = {str(name): item for name, item in value.items()}  # keys may be numbers
        value = named[pick_tensor(spec, list(named))]
    if isinstance(value, Mapping):
        value = dict(value)
    for _, tensor in walk(value):
        # An expanded tensor is small in the file, but not in memory.
        dense = tensor.layout is torch.strided and not tensor.is_meta
        if dense and tensor.numel() * tensor.element_size() > len(data) + _MAX_EXPANDED:
            raise InputError(
                f"The file {spec.path!r} of {len(data):,} bytes contains a tensor of shape"
                f" {tuple(tensor.shape)}, which takes over 1 GB more memory than the file.",
                "Save a smaller tensor, or a copy of it: tensor.clone().",
            )
    if not any(True for _ in walk(value)):
        raise InputError(f"The file {spec.path!r} contains no tensor.", "Save one by torch.save.")
    return value, sha256(data)


_GENERATORS: dict[str, Callable[[InputSpec, torch.Generator], Tensor]] = {
    "random": lambda spec, generator: torch.randn(spec.shape, generator=generator),
    "zeros": lambda spec, generator: torch.zeros(spec.shape),
    "ones": lambda spec, generator: torch.ones(spec.shape),
    "ints": lambda spec, generator: torch.randint(*spec.bounds, spec.shape, generator=generator),
}


def generate_tensor(context: ReadContext, spec: InputSpec) -> tuple[Tensor, None]:
    """Return the tensor of ``random:``, ``zeros:``, ``ones:`` (float32) or ``ints:`` (int64)."""
    try:
        return _GENERATORS[spec.rest](spec, context.generator), None
    except (RuntimeError, TypeError, MemoryError) as exc:  # as torch does if memory is short
        raise InputError(
            f"{spec.text} does not fit into memory.", "Choose a smaller shape."
        ) from exc
