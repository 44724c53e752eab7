"""Result files: tensors by key and one JSON text, as safetensors, or only arrays, as numpy files.

All metadata is under one key: safetensors does not sort keys, so equal recordings could differ.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import safetensors
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from hookscope.errors import StoreError
from hookscope.files import strict_json
from hookscope.files.atomic_files import replacement_file
from hookscope.files.numpy_files import ArrayEntry, check_single, write_arrays
from hookscope.files.output_path import MARK, SUFFIX
from hookscope.stores.capture_file import PAIRS, SCHEMA, read_error, read_header

log = logging.getLogger("hookscope")

# The format's names of dtypes: https://github.com/huggingface/safetensors#format
SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
REPAIR = "Choose another path with --output, or fewer layers."


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], info: dict[str, Any]
) -> int:
    """Write ``tensors`` and ``info`` to ``path`` atomically; return the file's size in bytes.

    ``info["stored_as"]`` names by key what is stored by value, as another dtype or layout.
    """
    stored: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    for key, tensor in tensors.items():
        stored[key], note = storable(tensor)
        if note:
            notes[key] = note
    metadata = metadata_of(info, notes)
    with replacement_file(path, REPAIR) as scratch:
        try:
            save_file(stored, scratch, metadata=metadata)
        except KeyError as error:
            raise StoreError(
                f"A result file cannot store tensors of dtype {error}.",
                "Convert them to another dtype, or do not record them.",
            ) from error
        size = scratch.stat().st_size
    return size


def metadata_of(info: dict[str, Any], notes: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file. ``notes`` say what is stored as another dtype or layout."""
    info = {"schema": SCHEMA, **info, **({"stored_as": notes} if notes else {})}
    return {MARK: strict_json.dumps(info, sort_keys=True)}


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the ``info`` of a file that ``write_tensors`` wrote."""
    header = read_header(path)
    try:
        tensors = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise read_error(path, error) from error
    for key in header.pairs:
        tensors[key] = torch.view_as_complex(tensors[key])
    return tensors, header.info


def write_numpy(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], ending: str) -> int:
    """Write ``tensors`` to a ``.npy`` or ``.npz`` file; return its size in bytes."""
    check_single(tensors, ending, "tensors")
    widened = [key for key, tensor in tensors.items() if _wider(tensor.dtype)]
    with replacement_file(path, REPAIR) as scratch:
        write_arrays(scratch, ending, _entries(tensors))
        size = scratch.stat().st_size
    if widened:
        more = f" and {len(widened) - 1} more" if widened[1:] else ""
        first = tensors[widened[0]].dtype
        log.info(
            "%s%s: numpy has no %s; written as %s with the same values",
            *(widened[0], more, _name(first), _name(_wider(first))),
        )
    return size


def _entries(tensors: Mapping[str, Tensor]) -> Iterator[ArrayEntry]:
    for key, tensor in tensors.items():
        array = to_array(key, tensor)
        yield ArrayEntry(key, array.dtype, array.shape, [array])


def to_array(key: str, tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array, which may share the memory of the tensor.

    Dtypes that numpy lacks are widened without a change of value: bfloat16 and the float8s become
    float32, complex32 complex64.
    """
    plain, _ = _plain(tensor)
    try:
        array: NDArray[Any] = plain.to(_wider(plain.dtype) or plain.dtype).numpy()
    except (TypeError, RuntimeError) as error:
        raise StoreError(
            f"{key} has the dtype {_name(plain.dtype)}, which numpy does not have.",
            f"Save it to a {SUFFIX} file, or convert the tensor.",
        ) from error
    return array


def _wider(dtype: torch.dtype) -> torch.dtype | None:
    """For a dtype that numpy does not have, one that contains its values; else None."""
    if dtype.is_complex and dtype not in (torch.complex64, torch.complex128):
        return torch.complex64
    known = (torch.float16, torch.float32, torch.float64)
    return torch.float32 if dtype.is_floating_point and dtype not in known else None


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _plain(tensor: Tensor) -> tuple[Tensor, str]:
    """A dense tensor in memory, and a note if its layout or dtype was another one."""
    note = ""
    tensor = tensor.detach()
    if tensor.is_quantized:
        note = f"dequantized from {_name(tensor.dtype)}"
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        note = f"dense, from {str(tensor.layout).removeprefix('torch.')}"
        tensor = tensor.to_dense()
    return tensor.cpu().resolve_conj().resolve_neg(), note


def storable(tensor: Tensor) -> tuple[Tensor, str]:
    """Return a tensor that safetensors can store, and a note if its dtype or layout differs."""
    tensor, note = _plain(tensor)
    if tensor.dtype in (torch.complex32, torch.complex128):
        note = f"{PAIRS}, from {_name(tensor.dtype)}"
        tensor = torch.view_as_real(tensor)
    elif tensor.is_complex() and tensor.dtype is not torch.complex64:
        note = f"complex64, from {_name(tensor.dtype)}"
        tensor = tensor.to(torch.complex64)
    return tensor.contiguous(), note
