r"""JSON that every parser reads: NaN and infinities, which JSON has no numbers for, become strings.

Lone surrogates, which UTF-8 has no bytes for, are written as they are shown: ``\udc80``.

Keys come out in the order given, or sorted: the same value is always the same text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from hookscope.files.escaping import encodable

Number = float | Literal["NaN", "Infinity", "-Infinity"]  # as ``dumps`` writes a float


def dumps(
    value: Any, *, indent: int | None = None, sort_keys: bool = False, surrogates: bool = False
) -> str:
    """Return ``value`` as strict JSON text; ``NaN``, ``Infinity`` and ``-Infinity`` as strings.

    With ``surrogates`` lone surrogates stay what they are, so that a path whose bytes are no UTF-8
    is read back as the same path.

    >>> dumps({"mean": float("nan"), "max": float("inf"), "shape": (1, 2)})
    '{"mean": "NaN", "max": "Infinity", "shape": [1, 2]}'
    """
    plain = _plain(value, str if surrogates else encodable)
    return json.dumps(plain, allow_nan=False, indent=indent, sort_keys=sort_keys)


def number(value: float | int | str | None) -> float | int | None:
    """Read back a number that ``dumps`` may have written as a string.

    >>> number("-Infinity"), number(2), number(None)
    (-inf, 2, None)
    """
    return float(value) if isinstance(value, str) else value


def _plain(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {text(str(key)): _plain(item, text) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, text) for item in value]
    if isinstance(value, str):
        return text(value)
    return value
