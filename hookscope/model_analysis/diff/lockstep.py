"""Threads that run in lockstep, each with its own state of the random generators."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hookscope.files.signal_safety import uninterrupted


class Stopped(BaseException):
    """Ends a thread that waits for its turn after another thread has failed."""


class Mixed(BaseException):
    """The modules of a model were called in the thread of another one."""


class Lockstep:
    """Runs functions in as many threads, one at a time. A function switches with ``hand_over``.

    The random generators belong to the process, so each switch stores and restores their states.
    All functions begin with the states that ``run`` finds.
    """

    def __init__(self, gpus: Sequence[int], number: int = 2) -> None:
        self._gpus = gpus
        self._changed = threading.Condition()
        self._turn = 0
        self._ended = [False] * number
        # Ctrl-C in a wait for a condition can leave its lock held, and then no thread gets on.
        self._all_ended = threading.Lock()
        self._all_ended.acquire()
        self._error: BaseException | None = None
        self._states: list[tuple[Any, ...]] = []
        self._threads: list[threading.Thread] = []

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all functions to their ends, beginning with the first; raise the first error."""
        self._states = [self._state() for _ in works]
        self._threads = threads = [
            threading.Thread(target=self._work, args=(side, work), daemon=True)
            for side, work in enumerate(works)
        ]
        try:
            _start(threads)
            self._all_ended.acquire()
        except BaseException as error:  # only this thread gets Ctrl-C
            self._end(error)
        for thread in threads:
            if thread.is_alive():
                thread.join()
        if self._error is not None:
            raise self._error

    def has_ended(self, side: int) -> bool:
        """Whether one of the functions has returned."""
        return self._ended[side]

    def hand_over(self, side: int) -> None:
        """Let each other function run until it hands over; return at once if all have ended.

        Raises:
            Mixed: another function calls this, which would wait for itself.
        """
        current = threading.current_thread()
        if current in self._threads and current is not self._threads[side]:
            raise Mixed
        with self._changed:
            self._check_running()
            following = self._after(side)
            if following == side:
                return
            self._states[side] = self._state()
            self._turn = following
            self._changed.notify_all()
            self._wait(side)

    def _after(self, side: int) -> int:
        """The function whose turn is next; ``side`` itself if all others have ended."""
        others = ((side + step) % len(self._ended) for step in range(1, len(self._ended)))
        return next((other for other in others if not self._ended[other]), side)

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
                self._turn = self._after(side)
                self._changed.notify_all()
                if all(self._ended):
                    self._all_ended.release()

    def _wait(self, side: int) -> None:
        self._changed.wait_for(lambda: self._turn == side or self._error is not None)
        self._check_running()
        self._restore(self._states[side])

    def _check_running(self) -> None:
        if self._error is not None:
            raise Stopped

    @uninterrupted
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
        for gpu, gpu_state in zip(self._gpus, gpus, strict=True):
            torch.cuda.set_rng_state(gpu_state, gpu)


@uninterrupted
def _start(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
