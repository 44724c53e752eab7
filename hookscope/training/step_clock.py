"""Which step of a training a value belongs to."""

from __future__ import annotations

from weakref import WeakSet

from torch.optim import Optimizer

_PATIENCE = 100  # steps of another optimizer, until the clock follows that one


class StepClock:
    """Counts the steps of a training with one optimizer or several.

    One optimizer is the clock: a step ends when it has stepped. It is the one that was the last of
    all to make its first step, as the generator's in a GAN that trains the discriminator first, and
    the last of many that each have one parameter. An optimizer that never steps is left out as soon
    as another one steps twice.

    Attributes:
        step: number of the current step, from 0.
    """

    def __init__(self) -> None:
        self.step = 0
        self._known: WeakSet[Optimizer] = WeakSet()
        self._counts: dict[int, int] = {}  # steps of each optimizer since the last step ended
        self._clock: int | None = None

    def add(self, optimizer: Optimizer) -> None:
        """Take an optimizer into account that was made; the clock is chosen anew.

        So a training that goes on with another optimizer, as after a fold of a cross-validation,
        is counted from there.
        """
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._clock = None
            self._counts.clear()

    def has_ended(self, optimizer: Optimizer) -> bool:
        """Count a step of an optimizer; return whether a step of the training has ended with it."""
        key = id(optimizer)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if self._clock is None:
            all_stepped = all(id(known) in self._counts for known in self._known)
            if not all_stepped and count == 1:
                return False
            self._clock = key
        elif self._clock != key:
            if count < _PATIENCE:
                return False
            self._clock = key  # the training goes on with another optimizer
        self._counts.clear()
        self.step += 1
        return True
