"""The options of ``top``, checked without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.choices import check_choice
from hookscope.specs.settings import setting
from hookscope.specs.value_readers import read_indices

MAX, MEAN = "max", "mean"
POSITION_REDUCTIONS = (MAX, MEAN)
DEFAULT_UNITS = 16  # the first ones, if none are named
MOST_COUNT = 1000


@dataclass(frozen=True)
class TopOptions:
    """Which units are ranked, and how."""

    section = "Units"

    layer: str | None = setting(
        None,
        "Layer or key. Default: the only one.",
        flags=("--layer", "-l"),
        metavar="KEY",
        complete="layers",
        python="a layer or a key; None if the folder has only one.",
    )
    units: Sequence[int] | None = setting(
        None,
        "Units or channels, such as 0-15. Default: the first 16.",
        kind="list",
        parse=read_indices,
        python="numbers of units or channels; None for the first 16.",
    )
    direction: Any = setting(
        None,
        "File .npy of one or more directions instead of units.",
        file="file",
        python="in place of units: an array, or a ``.npy`` file of one, of shape (channels,) or"
        " (n, channels). The activation is the dot product.",
    )
    by: str = setting(
        MAX,
        "How positions become one number.",
        choices=POSITION_REDUCTIONS,
        python="``max`` or ``mean`` over positions.",
    )
    count: int = setting(
        8,
        "Inputs at each end.",
        metavar="N",
        minimum=1,
        maximum=MOST_COUNT,
        python="inputs of each end.",
    )
    dim: int | None = setting(
        None,
        "Channel dimension of a row, if detected wrongly (-1: last).",
        flags=("--channel-dim",),
        metavar="N",
        python="the dimension of the channels in one row; None to infer it from the layer.",
    )

    def __post_init__(self) -> None:
        check_choice("by", self.by, POSITION_REDUCTIONS)
        if not 1 <= self.count <= MOST_COUNT:
            raise RequestError(f"count must be from 1 to {MOST_COUNT}, not {self.count}.")
        if self.units is not None and self.direction is not None:
            raise RequestError("Units and directions are both given.", "Leave out one of them.")
        if self.units is not None and not len(self.units):
            raise RequestError("No unit is named.", "Name some with --units, such as 0-15.")
