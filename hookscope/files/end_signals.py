"""Signals that ask a command to end: they end it as Ctrl-C does, so that it cleans up.

Their handler raises an exception, which other code may drop. Python ignores what is raised in a
finalizer and in a callback of a weak reference, and each import has one. PyTorch goes on without
numpy if the import of numpy fails. So the exception is kept, and ``end_if_asked`` raises it again.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal makes enums, which takes long
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# SIGTERM is sent by `timeout`, containers and SLURM, SIGHUP by a terminal that closes.
_NAMES = ("SIGTERM", "SIGHUP")

_asked: KeyboardInterrupt | None = None  # raised by the handler in the block that is open


class Terminated(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextmanager
def catch_end_signals() -> Iterator[None]:
    """Raise Terminated in the block on SIGTERM and SIGHUP, and KeyboardInterrupt on Ctrl-C.

    If other code drops the exception, the end of the block raises it. A second SIGTERM or SIGHUP
    kills the process. A signal that is ignored, as under ``nohup``, stays ignored. Under torchrun
    nothing changes: a process that waits for another would not notice the signal.
    """
    global _asked
    numbers = [getattr(_signal, name) for name in _NAMES if hasattr(_signal, name)]
    before = dict.fromkeys(numbers, _signal.SIG_DFL)
    before[_signal.SIGINT] = _signal.default_int_handler
    if "TORCHELASTIC_RUN_ID" in os.environ or not _is_main_thread():
        before = {}
    before = {n: handler for n, handler in before.items() if _signal.getsignal(n) == handler}
    show_unraisable = sys.unraisablehook

    def end(number: int, frame: FrameType | None) -> None:
        global _asked
        if number == _signal.SIGINT:
            _asked = KeyboardInterrupt()
            raise _asked
        for each in before.keys() - {_signal.SIGINT}:
            _signal.signal(each, _signal.SIG_DFL)
        _asked = Terminated(number)
        raise _asked

    def show(dropped: Any) -> None:
        if dropped.exc_value is not _asked:
            show_unraisable(dropped)

    _asked = None
    try:
        for number in before:
            _signal.signal(number, end)
        sys.unraisablehook = show
        yield
        end_if_asked()
    finally:
        for number, handler in before.items():
            if _signal.getsignal(number) == end:
                _signal.signal(number, handler)
        sys.unraisablehook = show_unraisable
        _asked = None


def end_if_asked() -> None:
    """Raise the exception of an end signal again if other code has dropped it."""
    if _asked is None or not _is_main_thread():
        return
    handled = sys.exc_info()[1]
    while handled is not None:
        if handled is _asked:  # it is on its way
            return
        handled = handled.__context__
    raise _asked


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
