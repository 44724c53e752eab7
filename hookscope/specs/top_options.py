"""The options of ``top``, checked without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.choices import check_choice

MAX, MEAN = "max", "mean"
POSITION_REDUCTIONS = (MAX, MEAN)
DEFAULT_UNITS = 16  # the first ones, if none are named
MOST_COUNT = 1000


@dataclass(frozen=True)
class TopOptions:
    """Which units are ranked, and how."""

    layer: str | None = None
    units: Sequence[int] | None = None
    direction: Any = None
    by: str = MAX
    count: int = 8
    dim: int | None = None

    def __post_init__(self) -> None:
        check_choice("by", self.by, POSITION_REDUCTIONS)
        if not 1 <= self.count <= MOST_COUNT:
            raise RequestError(f"count must be from 1 to {MOST_COUNT}, not {self.count}.")
        if self.units is not None and self.direction is not None:
            raise RequestError("Units and directions are both given.", "Leave out one of them.")
        if self.units is not None and not len(self.units):
            raise RequestError("No unit is named.", "Name some with --units, such as 0-15.")
