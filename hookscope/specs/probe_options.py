"""The options of ``probe``, checked without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.specs.choices import check_choice
from hookscope.specs.patterns import as_texts

LOGISTIC, RIDGE = "logistic", "ridge"
PROBES = (LOGISTIC, RIDGE)


@dataclass(frozen=True)
class ProbeOptions:
    """How layers are probed."""

    labels: str = "label"
    layers: str | Iterable[str] = ()
    by: str | None = None
    splits: int = 5
    test: float = 0.25
    l2: float = 1.0
    seed: int = 0
    memory: int = 2 * 10**9

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(as_texts(self.layers)))
        check_choice("by", self.by or LOGISTIC, PROBES)
        if self.splits < 1:
            raise RequestError(f"splits must be at least 1, not {self.splits}.")
        if not 0 < self.test < 1:
            raise RequestError(
                f"test is {self.test:g}, and a share of the rows is between 0 and 1.", "Use 0.25."
            )
        if not (self.l2 > 0 and math.isfinite(self.l2)):
            raise RequestError(f"l2 must be above 0 and finite, not {self.l2:g}.", "Use 1.")
        if not 0 <= self.seed <= 2**32 - self.splits:
            raise RequestError(
                f"{self.seed} is not a valid seed.", "Use a number from 0 up to 2**32 - 1."
            )
