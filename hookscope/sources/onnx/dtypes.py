"""The types of tensors in ONNX files, and those of torch for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

STRING = 8
# By the numbers of TensorProto.DataType. A type that torch has no equal of is None.
_TYPES: dict[int, tuple[str, int, torch.dtype | None]] = {
    1: ("float32", 32, torch.float32),
    2: ("uint8", 8, torch.uint8),
    3: ("int8", 8, torch.int8),
    4: ("uint16", 16, torch.uint16),
    5: ("int16", 16, torch.int16),
    6: ("int32", 32, torch.int32),
    7: ("int64", 64, torch.int64),
    STRING: ("string", 0, None),
    9: ("bool", 8, torch.bool),
    10: ("float16", 16, torch.float16),
    11: ("float64", 64, torch.float64),
    12: ("uint32", 32, torch.uint32),
    13: ("uint64", 64, torch.uint64),
    14: ("complex64", 64, torch.complex64),
    15: ("complex128", 128, torch.complex128),
    16: ("bfloat16", 16, torch.bfloat16),
    17: ("float8_e4m3fn", 8, torch.float8_e4m3fn),
    18: ("float8_e4m3fnuz", 8, torch.float8_e4m3fnuz),
    19: ("float8_e5m2", 8, torch.float8_e5m2),
    20: ("float8_e5m2fnuz", 8, torch.float8_e5m2fnuz),
    21: ("uint4", 4, None),
    22: ("int4", 4, None),
    23: ("float4_e2m1", 4, None),
    24: ("float8_e8m0fnu", 8, getattr(torch, "float8_e8m0fnu", None)),
    25: ("uint2", 2, None),
    26: ("int2", 2, None),
}
# Those that numpy has itself.
_NUMPY = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15}


def dtype_name(number: int) -> str:
    """Return the name of a type, such as ``float32`` for 1."""
    return _TYPES[number][0] if number in _TYPES else f"type {number}"


def dtype_bits(number: int) -> int | None:
    """Return the bits of one entry; None for texts and unknown types."""
    return _TYPES[number][1] or None if number in _TYPES else None


def torch_dtype(number: int) -> torch.dtype | None:
    """Return the type of torch; None if it has no equal."""
    return _TYPES[number][2] if number in _TYPES else None


def is_numpy_dtype(number: int) -> bool:
    """Whether numpy has the type."""
    return number in _NUMPY


def numpy_dtype(number: int) -> np.dtype[Any]:
    """Return the type of numpy, for which ``is_numpy_dtype`` is true."""
    return np.dtype(_TYPES[number][0])


def tensor_from_bytes(data: Any, number: int, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor in ``data``, an array of writable bytes; uint8 if torch lacks the type."""
    flat = torch.from_numpy(np.asarray(data).reshape(-1).view(np.uint8))
    dtype = torch_dtype(number)
    if dtype is None or not flat.numel():
        return flat if dtype is None else torch.empty(shape, dtype=dtype)
    return flat.view(dtype).reshape(shape)


def onnx_dtype(dtype: torch.dtype) -> int:
    """Return the number of a type of torch; 0 if ONNX has no equal."""
    return next((number for number, entry in _TYPES.items() if entry[2] is dtype), 0)
