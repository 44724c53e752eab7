"""How numbers are compared that repeat bit for bit: those of training runs and of weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hookscope.specs.request import LayerSelection
from hookscope.specs.tolerances import check_tolerances


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
