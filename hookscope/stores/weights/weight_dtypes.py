"""Dtypes in files of weights: torch's names and their sizes, without numpy."""

from __future__ import annotations

import re

# torch's name of each dtype of safetensors
FROM_SAFETENSORS = {
    "BOOL": "bool",
    **{f"I{8 * n}": f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{f"U{8 * n}": f"uint{8 * n}" for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": f"float{8 * n}" for n in (2, 4, 8)},
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F6_E2M3": "float6_e2m3",
    "F6_E3M2": "float6_e3m2",
    "F4": "float4_e2m1fn_x2",
}
# The name under which ``results.dtypes.widen`` knows a dtype that numpy does not have.
WIDENED = {
    torch_name: tag
    for tag, torch_name in FROM_SAFETENSORS.items()
    if tag == "BF16" or tag.startswith("F8")
}
_WHOLE_BYTES = {"bool": 8, "float4_e2m1fn_x2": 8}  # of the second, two values of four bits
# The size of each dtype, which is the first number in its name.
_BITS = _WHOLE_BYTES | {
    name: int(re.sub(r"\D+(\d+).*", r"\1", name))
    for name in (*FROM_SAFETENSORS.values(), "complex32", "complex128")
    if name not in _WHOLE_BYTES
}

_NUMPY_DTYPE = re.compile(r"([<>|=])([biufc])(\d{1,2})")
_NUMPY_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


def bits_of(dtype: str) -> int:
    """Return the size of an element in bits."""
    return _BITS[dtype]


def is_known(dtype: str) -> bool:
    """Whether this is torch's name of a dtype whose size is known."""
    return dtype in _BITS


def read_numpy_dtype(text: str) -> tuple[str, bool] | None:
    """Return torch's name of a dtype of numpy and whether it is big-endian; None if it has none."""
    match = _NUMPY_DTYPE.fullmatch(text)
    if match is None:
        return None
    order, kind, size = match.groups()
    name = "bool" if kind == "b" else f"{_NUMPY_KINDS[kind]}{8 * int(size)}"
    return (name, order == ">") if is_known(name) else None  # not float128
