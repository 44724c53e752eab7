"""The file of results: tensors by key and one JSON text, as safetensors.

All metadata stands under the single key ``hookscope``. Safetensors does not sort metadata keys, so
that with several of them equal recordings would give unequal files.
Writing is atomic: a reader finds the old file or the whole new one, never a part.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hookscope import strict_json
from hookscope.errors import StoreError
from hookscope.outputs import MARK

SCHEMA = 1


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], info: dict[str, Any]) -> int:
    """Write ``tensors`` and ``info`` to ``path`` as a whole; return the file's size in bytes.

    Layouts and dtypes that the format cannot hold are stored by value: sparse tensors dense,
    quantized ones dequantized to float32, complex32 and complex128 as pairs of reals in a last
    dimension of two. ``info["stored_as"]`` says so for each key, and ``read`` turns the
    complex ones back.

    Raises:
        StoreError: the folder cannot be written, the disk is full, or a dtype has no place in the
            format. An earlier file at ``path`` is then as it was.
    """
    target = Path(os.path.realpath(path))  # a link stays a link, to the new file
    stored: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    for key, tensor in tensors.items():
        stored[key], note = _storable(tensor)
        if note:
            notes[key] = note
    info = {"schema": SCHEMA, **info, **({"stored_as": notes} if notes else {})}
    metadata = {MARK: strict_json.dumps(info, sort_keys=True)}
    scratch = None
    try:
        scratch = _scratch_beside(target)
        save_file(stored, scratch, metadata=metadata)
        os.chmod(scratch, 0o666 & ~_umask())  # safetensors leaves 0600 whatever the umask
        size = scratch.stat().st_size
        os.replace(scratch, target)
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise StoreError(
            f"Cannot write {target}: {_cause(error)}.",
            "Nothing was written. Choose another place with --output, or fewer layers.",
        ) from error
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
    return size


def write_text(path: str | os.PathLike[str], text: str) -> int:
    """Write a text file in UTF-8 as ``write_bytes`` does."""
    return write_bytes(path, f"{text}\n".encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> int:
    """Write a file as ``write`` writes tensors: whole or not at all; return its size in bytes.

    Raises:
        StoreError: the file cannot be written. An earlier one is then as it was.
    """
    target = Path(os.path.realpath(path))
    scratch = None
    try:
        scratch = _scratch_beside(target)
        scratch.write_bytes(content)
        os.chmod(scratch, 0o666 & ~_umask())
        size = scratch.stat().st_size
        os.replace(scratch, target)
    except OSError as error:
        raise StoreError(
            f"Cannot write {target}: {_cause(error)}.", "Nothing was written. Choose another place."
        ) from error
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
    return size


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the ``info`` of a file that ``write`` made.

    Raises:
        StoreError: there is no such file, it is no safetensors file, or hookscope did not write it.
    """
    target = Path(path)
    try:
        with safetensors.safe_open(target, framework="pt") as opened:
            text = (opened.metadata() or {}).get(MARK)
        tensors = load_file(target)
    except (OSError, safetensors.SafetensorError) as error:
        raise StoreError(
            f"Cannot read {target}: {_cause(error)}.",
            "Give a file that 'hookscope capture' or 'hookscope grads' wrote.",
        ) from error
    if text is None:
        raise StoreError(
            f"{target} holds tensors, but hookscope did not write it.",
            "Open it with safetensors.safe_open, or make a capture with 'hookscope capture'.",
        )
    try:
        info = json.loads(text)
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise StoreError(f"Cannot read {target}: its metadata is damaged.", "Record it again.")
    if info.get("schema") != SCHEMA:
        raise StoreError(
            f"{target} has schema {info.get('schema')}, and this hookscope reads schema {SCHEMA}.",
            "Upgrade hookscope, or record the file again.",
        )
    for key, note in info.pop("stored_as", {}).items():
        if note.startswith("pairs of reals"):
            tensors[key] = torch.view_as_complex(tensors[key])
    return tensors, info


def _storable(tensor: Tensor) -> tuple[Tensor, str]:
    """A tensor that the format holds, and a note where that is not the same dtype or layout."""
    note = ""
    tensor = tensor.detach()
    if tensor.is_quantized:
        note = f"dequantized from {str(tensor.dtype).removeprefix('torch.')}"
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        note = f"dense, from {str(tensor.layout).removeprefix('torch.')}"
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.dtype in (torch.complex32, torch.complex128):
        note = f"pairs of reals, from {str(tensor.dtype).removeprefix('torch.')}"
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous(), note


def _scratch_beside(target: Path) -> Path:
    """A new empty file in the folder of ``target``, so that renaming it stays on one disk."""
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(number)
    return Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cause(error: Exception) -> str:
    """The error's own words, without the wrapping that only a Rust programmer reads."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().rstrip(".") or type(error).__name__
