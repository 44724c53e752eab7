"""The receptive field of a layer: on which positions of the input its units depend."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldSide:
    """The receptive fields of a layer's units along one side of the input.

    Attributes:
        size: positions from the first to the last one that a unit depends on; of the unit with the
            largest field.
        whole: whether every unit depends on the whole side.
        cut: whether each field goes on beyond an edge of the input, so that ``size`` is too small.
        stride: positions of the input from a unit to the next; None if the units are not on a grid.
        centre: position of the centre of the first unit's field, as if it went on beyond the edge.
    """

    size: int
    whole: bool
    cut: bool
    stride: float | None = None
    centre: float | None = None

    @property
    def needs_more(self) -> bool:
        """Whether a larger input would show the size, or the centre."""
        return not self.whole and (self.cut or (self.stride is not None and self.centre is None))


@dataclass(frozen=True)
class ReceptiveField:
    """The receptive field of a layer, with a part for each side of the input."""

    sides: tuple[FieldSide, ...]
