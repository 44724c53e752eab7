"""Context managers that signals do not interrupt: a signal is handled after they have finished.

Python runs the handler of a signal in the main thread between two instructions of the code that
runs there. Ctrl-C may therefore raise KeyboardInterrupt before the first line of an ``__exit__``,
where no ``try`` can catch it. So the handlers are replaced while there is state to restore. The
replacement looks at the stack: while a context manager of this module is being entered or left it
only notes the signal. At any other time it calls the original handler.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # no enums are made, which takes most of the time
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import CodeType, FrameType
from typing import Any, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

# SIGINT is Ctrl-C. The others are listed because programs set handlers for them that raise, for a
# time limit or a request to end. SIGINT is replaced first and restored last.
_NAMES = ("SIGINT", "SIGALRM", "SIGTERM", "SIGHUP", "SIGBREAK")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]

_RESTORING: set[CodeType] = set()  # code called from these is not interrupted
_WAITING: set[CodeType] = set()  # except for code called from these


class _Signals:
    """Replaces the handlers, which run in the main thread, while there is state to restore."""

    def __init__(self) -> None:
        self.untouched = False  # by what is entered now
        self.pending: list[int] = []
        self._open = 0
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def begin(self) -> bool:
        """Replace the handlers until ``end``; return False on threads other than the main one."""
        if self.untouched or threading.get_ident() != threading.main_thread().ident:
            return False
        if not self._open:
            try:
                self._replace_handlers()
            except BaseException:  # raised by a handler that was not replaced yet
                self._restore()
                raise
        self._open += 1  # not earlier: an interrupt may come until the first one is set
        return True

    def _replace_handlers(self) -> None:
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            # A handler that is not a Python function (the default, or one in C) does not raise.
            if callable(handler) and handler != self._handle:
                self._handlers[number] = handler
                _signal.signal(number, self._handle)

    def end(self, caller: FrameType) -> None:
        """Handle pending signals, unless ``caller`` is safe from them; the last call restores."""
        try:
            if self.pending and not is_signal_safe(caller):
                self.deliver()
        finally:
            self._open -= 1
            if not self._open:
                self._restore()

    def _restore(self) -> None:
        # A restored handler may raise while the others are restored, so this is tried twice. If one
        # is still not restored, ours calls it all the same, and it is restored the next time.
        try:
            self._restore_handlers()
        finally:
            try:
                self._restore_handlers()
            finally:
                self.deliver()

    def _restore_handlers(self) -> None:
        for number in reversed(self._handlers):
            if _signal.getsignal(number) == self._handle:  # else another one was set
                _signal.signal(number, self._handlers[number])

    def deliver(self) -> None:
        """Call the handlers of the signals that are pending; they may raise."""
        if self.pending:
            number = self.pending.pop(0)
            try:
                self._handlers[number](number, sys._getframe(1))
            finally:
                self.deliver()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not is_signal_safe(frame):
            self._handlers[number](number, frame)
        elif number not in self.pending:  # a second Ctrl-C adds nothing
            self.pending.append(number)


_signals = _Signals()


@contextmanager
def untouched_signals() -> Iterator[None]:
    """Replace no handlers for what is entered in the block, which stays until the program ends.

    The program would notice the replacement. What an interrupt leaves behind ends with the process.
    """
    _signals.untouched = True
    try:
        yield
    finally:
        _signals.untouched = False


def is_signal_safe(frame: FrameType | None) -> bool:
    """Whether ``frame``, or a frame that called it, must not be interrupted."""
    while frame is not None:
        if frame.f_code in _WAITING:
            return False
        if frame.f_code in _RESTORING:
            return True
        frame = frame.f_back
    return False


class SignalSafeContext(Generic[T]):
    """A context manager that is entered and left as a whole, whatever signals come.

    Subclasses define ``_enter``, which undoes what it did if it raises, and ``_leave``. A signal
    that comes in one of the two is handled at its end; if its handler raises as the block is
    entered, the block is left again first.
    """

    _defers = False

    def _enter(self) -> T:
        raise NotImplementedError

    def _leave(self, kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
        raise NotImplementedError

    def __enter__(self) -> T:
        self._defers = _signals.begin()
        try:
            entered = self._enter()
        except BaseException:
            if self._defers:
                _signals.end(sys._getframe(1))
            raise
        # Signals are handled after calls. There is no call between the last check for pending ones
        # and the block, so a signal that comes later is handled in the block.
        while self._defers and _signals.pending and not is_signal_safe(sys._getframe(1)):
            try:
                _signals.deliver()
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return entered

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
        try:
            return self._leave(kind, error, traceback)
        finally:
            if self._defers:
                self._defers = False
                _signals.end(sys._getframe(1))


class _Restored(SignalSafeContext[T]):
    def __init__(self, manager: AbstractContextManager[T]) -> None:
        self._manager = manager

    def _enter(self) -> T:
        return self._manager.__enter__()

    def _leave(self, kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
        return self._manager.__exit__(kind, error, traceback)


def signal_safe(manager: AbstractContextManager[T]) -> SignalSafeContext[T]:
    """Return a context manager that no signal interrupts while it is entered or left."""
    return _Restored(manager)


def signal_safe_contextmanager(
    function: Callable[P, Iterator[T]],
) -> Callable[P, SignalSafeContext[T]]:
    """Like ``contextmanager``, but signals do not interrupt the code around the ``yield``."""
    made = contextmanager(function)

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> SignalSafeContext[T]:
        return _Restored(made(*args, **kwargs))

    return make


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """Defer signals while a function runs: they are handled when it has returned."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        defers = _signals.begin()
        try:
            return function(*args, **kwargs)
        finally:
            if defers:
                _signals.end(sys._getframe(1))

    _RESTORING.add(run.__code__)  # type: ignore[attr-defined] # it is a function
    return run


def interruptible(function: Callable[P, T]) -> Callable[P, T]:
    """Let signals interrupt a function whose caller defers them; it must change no state."""
    _WAITING.add(function.__code__)
    return function


_RESTORING |= {SignalSafeContext.__enter__.__code__, SignalSafeContext.__exit__.__code__}
