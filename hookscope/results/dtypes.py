"""Dtypes of the file format in numpy. Those that numpy does not have are widened.

bfloat16 is the upper half of a float32. The float8 dtypes use tables of their 256 values, computed
from the definitions: E4M3FN and E5M2 from Micikevicius et al., "FP8 Formats for Deep Learning"
(2022), the FNUZ dtypes from Noune et al., "8-bit Numerical Formats for Deep Neural Networks"
(2022), E8M0 from the OCP Microscaling Formats specification (2023).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The numpy dtype with which to read each dtype of the format. Little-endian on every machine.
RAW = {
    "BOOL": "?",
    **{f"I{8 * n}": f"<i{n}" for n in (1, 2, 4, 8)},
    **{f"U{8 * n}": f"<u{n}" for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": f"<f{n}" for n in (2, 4, 8)},
    "C64": "<c8",
    "BF16": "<u2",
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"), "u1"),
}


def widen(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the values of the bits in ``array``; ``dtype`` is the format's name."""
    if array.dtype.names:
        # A view instead of arithmetic, which would change values: 1j * inf has a NaN.
        width = np.dtype("f8") if array.dtype["re"].itemsize == 8 else np.dtype("f4")
        parts = np.stack([array["re"], array["im"]], axis=-1).astype(width)
        return np.asarray(parts.view(np.result_type(width, np.complex64))[..., 0])
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if dtype.startswith("F8"):
        return np.asarray(_float8(dtype)[array])
    return array


@cache
def _float8(dtype: str) -> NDArray[np.float32]:
    """The value of each of the 256 bytes."""
    return np.array([_value(dtype, byte) for byte in range(256)], np.float32)


def _value(dtype: str, byte: int) -> float:
    if dtype == "F8_E8M0":
        return np.nan if byte == 255 else 2.0 ** (byte - 127)
    bits = 3 if "E4M3" in dtype else 2  # of the fraction
    bias = 7 if bits == 3 else 15
    magnitude = byte & 0x7F
    sign = -1.0 if byte & 0x80 else 1.0
    if dtype.endswith("FNUZ"):  # no infinities, and minus zero means NaN
        bias += 1
        if byte == 0x80:
            return np.nan
    elif bits == 3:
        if magnitude == 0x7F:
            return np.nan
    elif magnitude >= 0x7C:
        return sign * np.inf if magnitude == 0x7C else np.nan
    exponent, fraction = magnitude >> bits, magnitude & ((1 << bits) - 1)
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - bits)
    return sign * (1 + fraction / (1 << bits)) * 2.0 ** (exponent - bias)
