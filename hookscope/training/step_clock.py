"""Which step of a training a value belongs to."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakSet

from torch.optim import Optimizer


class EndedSteps(NamedTuple):
    """The steps of the training that have ended now that an optimizer has stepped."""

    held: list[int]
    current: bool


class StepClock:
    """Divides a training with one optimizer or several into steps.

    A turn is a backward pass and the steps of the optimizers that follow it. One optimizer is the
    clock: a step ends with its turn. It is the one that was the last of all to make its first step,
    as the generator's in a GAN that trains the discriminator first.
    """

    def __init__(self) -> None:
        self._known: WeakSet[Optimizer] = WeakSet()
        self._clock: int | None = None
        self._held: list[list[int]] = []  # the optimizers of each turn
        self._turn: list[int] = []
        self._goes_on = False  # there was no backward pass since the last turn was held

    def add(self, optimizer: Optimizer) -> None:
        """Take an optimizer into account that was made; the clock is chosen anew.

        So a training that goes on with another optimizer, as after a fold of a cross-validation,
        is counted from there.
        """
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._clock = None

    def before_backward(self) -> None:
        """Begin a new turn: the script calls ``backward()``."""
        self._goes_on = False

    def resumes(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer that is about to step belongs to the last turn that is held.

        That turn is then held no more.
        """
        if not self._goes_on or id(optimizer) in self._held[-1]:
            return False
        self._goes_on = False
        self._turn = self._held.pop()
        return True

    def count(self, optimizer: Optimizer) -> EndedSteps:
        """Count a step of an optimizer; return which steps of the training have ended with it."""
        key = id(optimizer)
        ended = self._end_held(key)
        turn, self._turn = [*self._turn, key], []
        if self._clock is None:
            stepped = {one for held in (*self._held, turn) for one in held}
            if all(id(known) in stepped for known in self._known):
                self._clock = key
        is_end = key == self._clock
        self._held = [] if is_end else [*self._held, turn]
        self._goes_on = not is_end
        return EndedSteps(ended, is_end)

    def _end_held(self, key: int) -> list[int]:
        """End the turns that are held if an optimizer steps again that had one of them."""
        first = next((n for n, turn in enumerate(self._held) if key in turn), None)
        if first is None:
            return []
        ended = [1] * first + [len(self._held) - first]
        self._clock = self._held[-1][-1]
        self._held = []
        return ended
