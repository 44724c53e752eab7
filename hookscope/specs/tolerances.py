"""Default tolerances for comparing tensors, by dtype.

Those of ``torch.testing.assert_close`` are listed, so that files are compared without torch. A
test compares them with torch's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.specs.request import LayerSelection

# rtol and atol by dtype. Dtypes that are not listed (integers, bool, float8) must be equal.
DEFAULT_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
    **dict.fromkeys(("quint8", "quint2x4", "quint4x2", "qint8", "qint32"), (1.3e-6, 1e-5)),
}

# Between two engines, such as PyTorch and onnxruntime, by dtype: a share of each entry, and of the
# largest entry of A's tensor. They add up the products of a layer in different orders, so the error
# of an entry depends on the large entries. docs/diff.md names the largest deviation that was
# measured. Dtypes that are not listed must be equal.
ENGINE_TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-9}

_SUBNORMAL = 2.0**-126  # smaller ones of float32 have few bits, or none in some engines


def engine_tolerances(
    a: str, b: str, largest: float, atol: float | None = None, rtol: float | None = None
) -> tuple[float, float]:
    """Return ``(atol, rtol)`` for two engines; a None becomes the looser of their defaults.

    >>> engine_tolerances("float32", "float16", 200), engine_tolerances("float32", "float32", 2, 0)
    ((2.0, 0.01), (0, 0.0001))
    """
    share = max(ENGINE_TOLERANCES.get(dtype, 0.0) for dtype in (a, b))
    part = max(share * largest, _SUBNORMAL) if share else 0.0
    return (part if atol is None else atol, share if rtol is None else rtol)


def tolerances(
    a: str, b: str, atol: float | None = None, rtol: float | None = None
) -> tuple[float, float]:
    """Return ``(atol, rtol)`` for two dtypes; a None becomes the looser of their defaults."""
    known = [DEFAULT_TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in (a, b)]
    loose_rtol, loose_atol = (max(numbers) for numbers in zip(*known, strict=True))
    return (loose_atol if atol is None else atol, loose_rtol if rtol is None else rtol)


def check_tolerances(atol: float | None, rtol: float | None) -> None:
    """Raise RequestError if a tolerance is negative or not finite."""
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not 0 <= value < math.inf:
            raise RequestError(
                f"--{name} {value} is not a valid tolerance.",
                "Give a finite number that is 0 or more.",
            )


@dataclass(frozen=True)
class ExactDiffOptions:
    """How two runs, or two sets of weights, are compared."""

    layers: str | Iterable[str] = ()
    atol: float | None = None
    rtol: float | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(LayerSelection(self.layers).layers))
        check_tolerances(self.atol, self.rtol)
