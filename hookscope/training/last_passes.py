"""The last backward passes of a program that is watched: where they began, and with which graph."""

from __future__ import annotations

import sys
from collections import deque
from traceback import walk_stack
from types import CodeType
from typing import NamedTuple

from hookscope.tensors.torch_internals import next_sequence_nr

_KEPT = 8


class BackwardPass(NamedTuple):
    """The start of a backward pass.

    ``first_node`` is the number of the first node that was made after it; ``calls`` has the code
    that was running, the innermost first, each with its instruction and its line.
    """

    first_node: int
    calls: tuple[tuple[CodeType, int, int], ...]


class BackwardPasses:
    """The starts of the last backward passes; the variables of the program are not kept."""

    def __init__(self) -> None:
        self.last: deque[BackwardPass] = deque(maxlen=_KEPT)

    def note(self) -> None:
        """Note that a backward pass begins."""
        running = walk_stack(sys._getframe(1))
        calls = tuple((frame.f_code, frame.f_lasti, line) for frame, line in running)
        self.last.append(BackwardPass(next_sequence_nr(), calls))
