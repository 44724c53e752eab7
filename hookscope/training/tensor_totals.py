"""The numbers of the tensors that a layer returned in one step, and of the gradients there.

The calls of a step are combined as their numbers arrive: their squares and counts are added, and
the largest magnitude of all is taken. So a step with many calls takes no more memory than one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class TensorTotals:
    """Several tensors as one."""

    __slots__ = ("_norm", "_squares", "largest", "nonfinite", "tensors")

    def __init__(self) -> None:
        self.tensors = 0
        self.largest = 0.0
        self.nonfinite = 0.0
        self._norm = 0.0  # of the last one, which is exact if it is the only one
        self._squares = 0.0

    def take_size(self, numbers: list[float]) -> None:
        """Add the norm, the least and the largest entry of a tensor."""
        norm, low, high = numbers
        self.tensors += 1
        self._norm = norm
        self._squares += norm * norm
        largest = max(abs(low), abs(high))  # both are NaN if an entry is
        if largest > self.largest or largest != largest:
            self.largest = largest

    def take_nonfinite(self, numbers: list[float]) -> None:
        """Add the number of entries of a tensor that are NaN or infinite."""
        self.nonfinite += numbers[0]

    def join(self, later: TensorTotals) -> None:
        """Add those of another total."""
        self.tensors += later.tensors
        if later.tensors == 1:
            self._norm = later._norm
        self._squares += later._squares
        if later.largest > self.largest or later.largest != later.largest:
            self.largest = later.largest
        self.nonfinite += later.nonfinite

    @property
    def norm(self) -> float:
        """Euclidean norm of all entries."""
        return self._norm if self.tensors == 1 else math.sqrt(self._squares)


class OutputTotals(TensorTotals):
    """What a layer returned in the calls of a step."""

    __slots__ = ("_alive", "gradients", "nonzero", "numel")

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0
        self.nonzero = 0.0
        self.gradients = TensorTotals()
        # Along each dimension that may be that of units, which of them are not zero in some call;
        # None if the calls have different numbers of units.
        self._alive: list[NDArray[np.bool_] | None] | None = None

    def take_nonzero(self, counts: list[Any]) -> None:
        """Add the number of entries of a tensor that are not zero, or such numbers by unit."""
        if not isinstance(counts[0], np.ndarray):
            self.nonzero += counts[0]
            return
        self.nonzero += float(counts[0].sum(dtype=np.float64))
        self._add_alive([count != 0 for count in counts])

    def _add_alive(self, alive: Sequence[NDArray[np.bool_] | None]) -> None:
        if self._alive is None:
            self._alive = list(alive)
            return
        for n, (before, now) in enumerate(zip(self._alive, alive, strict=False)):
            is_known = before is not None and now is not None and len(before) == len(now)
            self._alive[n] = before | now if is_known else None  # type: ignore[operator]
        del self._alive[len(alive) :]

    def join_outputs(self, later: OutputTotals) -> None:
        """Add what the layer returned in later calls."""
        self.join(later)
        self.numel += later.numel
        self.nonzero += later.nonzero
        self.gradients.join(later.gradients)
        if later._alive is not None:
            self._add_alive(later._alive)

    @property
    def dead(self) -> float | None:
        """Share of units that are zero in all calls; None if there are no units.

        Of several dimensions the one counts in which fewer are.
        """
        if self._alive is None:
            return None
        return min(
            0.0 if alive is None else 1 - np.count_nonzero(alive) / len(alive)
            for alive in self._alive
        )


class CallMeasure:
    """The numbers of one tensor that was returned, for each layer that returned it.

    A module may return what its last child has returned: it is measured once, for both.
    """

    __slots__ = ("_arrived", "_numel", "totals")

    def __init__(self, numel: int) -> None:
        self.totals: list[OutputTotals] = []
        self._numel = numel
        self._arrived: list[tuple[str, list[Any]]] = []

    def add_to(self, totals: OutputTotals) -> None:
        """Add the numbers, also those that arrive later, to those of a layer."""
        self.totals.append(totals)
        totals.numel += self._numel
        for name, numbers in self._arrived:
            getattr(totals, name)(numbers)

    def take_size(self, numbers: list[float]) -> None:
        """Take the norm, the least and the largest entry."""
        self._arrived.append(("take_size", numbers))
        for totals in self.totals:
            totals.take_size(numbers)

    def take_nonfinite(self, numbers: list[float]) -> None:
        """Take how many entries are NaN or infinite."""
        self._arrived.append(("take_nonfinite", numbers))
        for totals in self.totals:
            totals.take_nonfinite(numbers)

    def take_nonzero(self, counts: list[Any]) -> None:
        """Take how many entries are not zero: of all, or by unit along some dimensions."""
        self._arrived.append(("take_nonzero", counts))
        for totals in self.totals:
            totals.take_nonzero(counts)


class GradientMeasure:
    """Passes the numbers of a gradient on to the layers that returned the tensor."""

    __slots__ = ("_call",)

    def __init__(self, call: CallMeasure) -> None:
        self._call = call

    def take_size(self, numbers: list[float]) -> None:
        """Take the norm, the least and the largest entry."""
        for totals in self._call.totals:
            totals.gradients.take_size(numbers)

    def take_nonfinite(self, numbers: list[float]) -> None:
        """Take how many entries are NaN or infinite."""
        for totals in self._call.totals:
            totals.gradients.take_nonfinite(numbers)
