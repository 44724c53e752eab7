"""JSON that every parser reads: NaN and infinities, which JSON has no numbers for, become strings.

Keys come out in the order given, or sorted: the same value is always the same text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

Number = float | Literal["NaN", "Infinity", "-Infinity"]  # as ``dumps`` writes a float


def dumps(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return ``value`` as strict JSON text; ``NaN``, ``Infinity`` and ``-Infinity`` as strings.

    >>> dumps({"mean": float("nan"), "max": float("inf"), "shape": (1, 2)})
    '{"mean": "NaN", "max": "Infinity", "shape": [1, 2]}'
    """
    return json.dumps(_plain(value), allow_nan=False, indent=indent, sort_keys=sort_keys)


def number(value: float | int | str | None) -> float | int | None:
    """Read back a number that ``dumps`` may have written as a string.

    >>> number("-Infinity"), number(2), number(None)
    (-inf, 2, None)
    """
    return float(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
