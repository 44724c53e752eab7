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
    """Which units are ranked, and how.

    Attributes:
        layer: a layer or a key; None if the folder has only one.
        units: numbers of units or channels; None for the first 16.
        direction: a ``.npy`` file or an array of directions, (channels,) or (n, channels), in place
            of units.
        by: how positions become one number: ``max`` or ``mean``.
        count: inputs of each end.
        dim: the dimension of the channels in one row; None to infer it.

    Raises:
        RequestError: a value is not one of the choices, or out of range.
    """

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
