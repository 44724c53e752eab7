"""The threads of a recording, and runs that only one thread may make at a time.

A hook is attached to a module, and any thread may call that module. A recording belongs to the
thread that opened it. These threads are part of it too:

- the threads in which autograd runs a backward pass that such a thread started. On the CPU that is
  the thread itself; each GPU has its own thread. PyTorch passes its thread-local state to them, so
  the scope of a thread is stored there.
- the threads that the model starts while it is being called: those of ``nn.DataParallel``, and
  those that a ``forward`` starts itself.

A thread started elsewhere, or earlier, is not part of it, such as a worker of a server or a pool.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any, TypeVar

from torch.nn.parallel import parallel_apply

from hookscope.errors import RequestError
from hookscope.files.signal_safety import interruptible, signal_safe_contextmanager
from hookscope.tensors.torch_internals import CALL_CODE, OUTER_CALL_CODE, thread_object

T = TypeVar("T")

log = logging.getLogger("hookscope")

_scopes = thread_object("hookscope")
_CALLS = {CALL_CODE, OUTER_CALL_CODE, parallel_apply.__code__}  # run while a module is called


class ThreadScope:
    """The recordings that the calls of a thread belong to."""

    def __init__(self, parent: ThreadScope | None = None) -> None:
        self.parent = parent
        self.uses = 0
        self.recordings: set[RecordingThreads] = set(parent.recordings) if parent else set()

    def is_within(self, other: ThreadScope | None) -> bool:
        """Whether it is ``other``, or its thread was started by a call in ``other``."""
        return self is other or (self.parent is not None and self.parent.is_within(other))


def _scope() -> ThreadScope | None:
    """The scope of the current thread; None if it has none yet."""
    scope: ThreadScope | None = _scopes.get()
    return scope


def _own_scope() -> ThreadScope:
    scope = _scope()
    if scope is None:
        scope = ThreadScope()
        _scopes.set(scope)
    return scope


def _begin_use() -> ThreadScope:
    scope = _own_scope()
    scope.uses += 1
    return scope


def _end_use(scope: ThreadScope) -> None:
    """Remove an unused scope from this thread."""
    scope.uses -= 1
    if not scope.uses and _scope() is scope:
        _scopes.remove()


def fork_safe_lock() -> threading.RLock:
    """Return a lock that is released in a forked process, even if another thread held it."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        # As Python's own modules do with their locks.
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
    return lock


def _run_in(scope: ThreadScope, function: Callable[..., T], *args: Any) -> T:
    before = _scope()
    _scopes.set(scope)
    scope.uses += 1
    try:
        return function(*args)
    finally:
        scope.uses -= 1
        if before is None:
            _scopes.remove()
        else:
            _scopes.set(before)


def as_this_thread(function: Callable[..., T]) -> Callable[..., T]:
    """Return ``function`` such that it counts as run in this thread, whatever thread runs it.

    Only one of the threads that count as one may run at a time.
    """
    return partial(_run_in, _own_scope(), function)


class SharedSetting:
    """A setting of the process: made for the first thread that needs it, undone after the last.

    If each thread restored what it found, the last one would restore the setting itself. Acquire
    and release it only where signals are deferred.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._manager: AbstractContextManager[Any] | None = None
        self._count = 0
        self._lock = fork_safe_lock()

    def acquire(self) -> None:
        """Make the setting, unless another thread has made it."""
        with self._lock:
            if self._count == 0:
                manager = self._make()
                manager.__enter__()
                self._manager = manager
            self._count += 1

    def release(self) -> None:
        """Undo the setting, unless another thread still needs it."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._manager is not None:
                self._manager.__exit__(None, None, None)
                self._manager = None


@contextmanager
def _marking_threads() -> Iterator[None]:
    """Give a thread that is started in a call of a module the scope of that call.

    Python does not record which thread started another one (from 3.14 on a thread can inherit a
    context, which is off by default), so ``Thread.start`` is replaced while a recording is open.
    """
    plain = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        scope = _scope()
        if scope is not None and scope.recordings and _is_calling_a_module():
            # The thread finds this in place of its class's ``run``.
            thread.run = partial(_run_marked, thread, ThreadScope(scope))  # type: ignore[method-assign]
        plain(thread)

    threading.Thread.start = start  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if threading.Thread.start is start:  # else it was replaced by other code since
            threading.Thread.start = plain  # type: ignore[method-assign]


def _run_marked(thread: threading.Thread, scope: ThreadScope) -> None:
    del thread.run
    _run_in(scope, thread.run)


def _is_calling_a_module() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _CALLS:
        frame = frame.f_back
    return frame is not None


_marked_threads = SharedSetting(_marking_threads)


class RecordingThreads:
    """The threads whose calls belong to a recording, from ``open`` to ``close``."""

    def __init__(self) -> None:
        self.opener: int | None = None
        self._scope: ThreadScope | None = None

    def open(self) -> None:
        """Add the current thread, as the first one."""
        _marked_threads.acquire()
        self._scope = _begin_use()
        self._scope.recordings.add(self)
        self.opener = get_ident()

    def close(self) -> None:
        """Remove all threads."""
        self.opener = None
        if self._scope is not None:
            self._scope.recordings.discard(self)
            _end_use(self._scope)
            self._scope = None
            _marked_threads.release()

    def includes_current_thread(self) -> bool:
        """Whether the current thread is one of them."""
        if get_ident() == self.opener:
            return True
        scope = _scope()
        return scope is not None and self in scope.recordings


class EveryThread(RecordingThreads):
    """All threads of the process, for a recording that is not of one run but of the process."""

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def includes_current_thread(self) -> bool:
        """True."""
        return True


class _FairLock:
    """A reentrant lock that threads get in the order in which they requested it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holder: ThreadScope | None = None
        self._name = ""
        self._depth = 0
        self._queue: deque[tuple[ThreadScope, str, threading.Lock]] = deque()

    def acquire(self, scope: ThreadScope) -> None:
        """Wait until no other thread holds it."""
        name = threading.current_thread().name
        with self._mutex:
            if self._holder is None or self._holder is scope:
                self._holder, self._name = scope, name
                self._depth += 1
                return
            if scope.is_within(self._holder):
                raise RequestError(
                    f"Thread {name!r} cannot start a run of hookscope: it was itself started by the"
                    f" model of a run in thread {self._name!r}.",
                    "Start the run in the thread that calls the model.",
                )
            gate = threading.Lock()
            gate.acquire()
            self._queue.append((scope, name, gate))
            holder = self._name
        log.info("waiting: another run of hookscope is active in thread %r", holder)
        try:
            _wait(gate)
        except BaseException:
            with self._mutex:
                waits = (scope, name, gate) in self._queue
                if waits:
                    self._queue.remove((scope, name, gate))
            if not waits:  # this thread got it before the interrupt
                self.release()
            raise

    def release(self) -> None:
        """Pass it to the thread that has waited longest."""
        with self._mutex:
            self._depth -= 1
            if self._depth:
                return
            self._holder, self._name = None, ""
            if self._queue:
                self._holder, self._name, gate = self._queue.popleft()
                self._depth = 1
                gate.release()

    def forget_other_threads(self) -> None:
        """Reset it in a forked process, in which only the thread that forked continues."""
        self._mutex = threading.Lock()
        self._queue.clear()
        if self._holder is not None and self._holder is not _scope():
            self._holder, self._name, self._depth = None, "", 0


@interruptible
def _wait(gate: threading.Lock) -> None:
    gate.acquire()


_turn = _FairLock()


@signal_safe_contextmanager
def exclusive_run() -> Iterator[None]:
    """Make other threads that enter such a block wait until this one ends.

    It is for code that changes and then restores what threads share: the random generators, which
    all models share, and the mode, buffers and gradients of a model.
    """
    scope = _begin_use()
    try:
        _turn.acquire(scope)
        try:
            yield
        finally:
            _turn.release()
    finally:
        _end_use(scope)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turn.forget_other_threads)
