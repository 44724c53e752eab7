"""The file of results: tensors by key and one JSON text, as safetensors.

All metadata stands under the single key ``hookscope``. Safetensors does not sort metadata keys, so
that with several of them equal recordings would give unequal files. What a file's header says is
read in ``header.py``, without torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hookscope import strict_json
from hookscope.atomic import replacing
from hookscope.header import PAIRS, SCHEMA, cannot_read, read_header
from hookscope.outputs import MARK


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
    stored: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    for key, tensor in tensors.items():
        stored[key], note = _storable(tensor)
        if note:
            notes[key] = note
    info = {"schema": SCHEMA, **info, **({"stored_as": notes} if notes else {})}
    metadata = {MARK: strict_json.dumps(info, sort_keys=True)}
    with replacing(path, "Choose another place with --output, or fewer layers.") as scratch:
        save_file(stored, scratch, metadata=metadata)
        size = scratch.stat().st_size
    return size


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the ``info`` of a file that ``write`` made.

    Raises:
        ResultsFileError: there is no such file, it is no safetensors file, or hookscope did not
            write it.
    """
    header = read_header(path)
    try:
        tensors = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise cannot_read(path, error) from error
    for key in header.pairs:
        tensors[key] = torch.view_as_complex(tensors[key])
    return tensors, header.info


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
        note = f"{PAIRS}, from {str(tensor.dtype).removeprefix('torch.')}"
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous(), note
