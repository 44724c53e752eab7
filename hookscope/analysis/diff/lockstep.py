"""Two threads of which one runs at a time, each with the random state in which it stopped."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


class Stopped(BaseException):
    """Ends a thread that waits for its turn when there is nothing more to wait for."""


class Lockstep:
    """Runs two functions in step: each hands over with ``target_for_function`` and waits for its turn.

    Whatever holds for a single thread (grad mode, hooks that run) is each one's own already. The
    generators of random numbers are not: they are put away and brought back at each change.

    Args:
        gpus: indices of the CUDA devices whose generators are to be changed too.
    """

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = gpus
        self._changed = threading.Condition()
        self._turn = 0
        self._ended = [False, False]
        self._error: BaseException | None = None
        self._states = [self._state(), self._state()]

    def run(self, works: tuple[Callable[[], None], Callable[[], None]]) -> None:
        """Run both to their ends, the first one first; raise what the first to fail raised."""
        threads = [
            threading.Thread(target=self._work, args=(side, work), daemon=True)
            for side, work in enumerate(works)
        ]
        try:
            for thread in threads:
                thread.start()
            with self._changed:  # no join: a thread whose join is interrupted counts as ended
                self._changed.wait_for(lambda: all(self._ended))
        except BaseException as error:  # Ctrl-C comes to this thread alone
            self._end(error)
        for thread in threads:
            if thread.is_alive():  # the second one may not have been started
                thread.join()
        if self._error is not None:
            raise self._error

    def has_ended(self, side: int) -> bool:
        """Whether one of the two is at its end."""
        return self._ended[side]

    def hand_over(self, side: int) -> None:
        """Let the other one run until it hands over; go on at once if it has come to its end."""
        with self._changed:
            self._demand_going()
            if self._ended[1 - side]:
                return
            self._states[side] = self._state()
            self._turn = 1 - side
            self._changed.notify_all()
            self._wait(side)

    def _work(self, side: int, work: Callable[[], None]) -> None:
        try:
            with self._changed:
                self._wait(side)
            work()
        except Stopped:
            pass
        except BaseException as error:
            self._end(error)
        finally:
            with self._changed:
                self._ended[side] = True
                self._turn = 1 - side
                self._changed.notify_all()

    def _wait(self, side: int) -> None:
        self._changed.wait_for(lambda: self._turn == side or self._error is not None)
        self._demand_going()
        self._restore(self._states[side])

    def _demand_going(self) -> None:
        if self._error is not None:
            raise Stopped

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _state(self) -> tuple[Any, ...]:
        gpus = [torch.cuda.get_rng_state(gpu) for gpu in self._gpus]
        return random.getstate(), np.random.get_state(), torch.get_rng_state(), gpus

    def _restore(self, state: tuple[Any, ...]) -> None:
        python, numpy, cpu, gpus = state
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        for gpu, one in zip(self._gpus, gpus, strict=True):
            torch.cuda.set_rng_state(one, gpu)
