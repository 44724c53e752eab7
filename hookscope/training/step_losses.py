"""The loss of a step with several backward passes: the sum if the script divides them, or the mean.

A script that accumulates gradients over N backward passes usually divides each loss by N, or by a
number that all of them share, such as that of the tokens of the whole step. The sum is then what it
prints. Whether it divides is seen in the graph of the loss, in the first step that has several
backward passes, and holds for the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from hookscope.stores.runs.run_info import LossRule

_MAX_NODES = 8  # from the loss on that may scale it
_UNCHANGED = ("ToCopyBackward0", "CloneBackward0")
_TRIES = 100  # steps with one backward pass each, until no loss is looked at any more


class _Divisors(NamedTuple):
    """What a loss was divided by, by a number or a tensor of one entry."""

    numbers: list[float]  # also the inverse of what it was multiplied by
    tensors: list[Tensor]  # the same objects as in the script


def _divisors_of(loss: Tensor) -> _Divisors:
    found = _Divisors([], [])
    for node in _scaling_nodes(loss):
        try:
            other = getattr(node, "_saved_other", None)
        except RuntimeError:  # it was written to in place
            break
        if not isinstance(other, Tensor) or other.numel() != 1:
            break
        divides = node.name() == "DivBackward0"
        if divides:
            found.tensors.append(other)
        # Reading a number from another device would mean to wait for it.
        if other.is_cpu and (number := float(other)):
            found.numbers.append(number if divides else 1 / number)
    return found


def _scaling_nodes(loss: Tensor) -> Iterator[Any]:
    node: Any = loss.grad_fn
    for _ in range(_MAX_NODES):
        if node is None:
            return
        inputs = [one for one, _ in node.next_functions if one is not None]
        if len(inputs) != 1:
            return
        if node.name() in ("DivBackward0", "MulBackward0"):
            yield node
        elif node.name() not in _UNCHANGED:
            return
        node = inputs[0]


class LossOfSteps:
    """How the losses of the backward passes of a step are combined."""

    def __init__(self) -> None:
        self.rule: LossRule = ""
        self._divisors: list[_Divisors] = []
        self._tries = 0

    def look(self, loss: Tensor) -> None:
        """Look at the graph of a loss that is about to be differentiated."""
        if not self.rule and self._tries < _TRIES:
            self._divisors.append(_divisors_of(loss))

    def end_part(self, count: int) -> None:
        """Choose the rule, if the optimizer has stepped after ``count`` backward passes."""
        if count > 1 and not self.rule:
            self.rule = "sum" if self._are_divided(count) else "mean"
        if count:
            self._tries += 1
            self._divisors.clear()

    def end_step(self, count: int) -> None:
        """Choose the mean for a step whose ``count`` backward passes are of several optimizers."""
        if count > 1 and not self.rule:
            self.rule = "mean"

    def _are_divided(self, count: int) -> bool:
        divisors = self._divisors
        if len(divisors) != count:
            return False
        if all(any(math.isclose(n, count) for n in one.numbers) for one in divisors):
            return True
        first, *others = divisors
        return any(
            all(any(tensor is same for tensor in one.tensors) for one in others)
            for same in first.tensors
        )


class LossTotal:
    """The losses of some backward passes; it waits for no device."""

    def __init__(self, rule: LossOfSteps) -> None:
        self.count = 0
        self._rule = rule
        self._sum: float | Tensor = 0.0

    def add(self, loss: float | Tensor, count: int = 1) -> None:
        """Add the loss of a backward pass, or the sum of those of some; a tensor is copied."""
        self.count += count
        self._sum = self._sum + loss

    def join(self, later: LossTotal) -> None:
        """Add those of another total."""
        self.add(later._sum, later.count)

    @property
    def value(self) -> float | Tensor:
        """The loss; its sum or mean if there are several."""
        return self._sum / self.count if self.count > 1 and self._rule.rule != "sum" else self._sum
