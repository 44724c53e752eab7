"""Signals that ask a command to end: they end it as Ctrl-C does, so that it cleans up."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal makes enums, which takes long
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# SIGTERM is sent by `timeout`, containers and SLURM, SIGHUP by a terminal that closes.
_NAMES = ("SIGTERM", "SIGHUP")


class Terminated(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextmanager
def catch_termination() -> Iterator[None]:
    """Raise Terminated in the block on SIGTERM and SIGHUP. A second signal kills the process.

    A signal that is ignored, as under ``nohup``, stays ignored. Under torchrun nothing changes: a
    process that waits for another would not notice the signal.
    """
    numbers = [getattr(_signal, name) for name in _NAMES if hasattr(_signal, name)]
    if (
        "TORCHELASTIC_RUN_ID" in os.environ
        or threading.current_thread() is not threading.main_thread()
    ):
        numbers = []
    replaced = [n for n in numbers if _signal.getsignal(n) == _signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for each in replaced:
            _signal.signal(each, _signal.SIG_DFL)
        raise Terminated(number)

    try:
        for number in replaced:
            _signal.signal(number, end)
        yield
    finally:
        for number in replaced:
            if _signal.getsignal(number) == end:
                _signal.signal(number, _signal.SIG_DFL)
