"""A copy of this process in which code runs that must leave nothing behind.

The copy is a fork: it has all variables of the program, and what it does to them ends with it. On
Linux, Landlock keeps it from creating, changing and deleting files, and from network connections
over TCP; its open files and sockets are replaced by ``/dev/null``; an audit hook of Python refuses
other sockets, new programs and signals. Without Landlock nothing is run.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import pickle
import select
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # numbers of the system calls, on every architecture
_VERSION = 1  # flag of the first call: return the version of Landlock
_BENEATH_PATH = 1  # type of a rule
_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 4, 1 << 5, 1 << 13, 1 << 14
_MAKE = sum(1 << bit for bit in range(6, 13))
_CHANGES = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE
_TCP = 0b11  # bind and connect
_NO_NEW_PRIVILEGES, _END_WITH_PARENT = 38, 1  # of prctl
_SHARED_MEMORY = "/dev/shm"  # where workers of a data loader put their batches
_REFUSED = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile"),
    *("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"),
    *("os.kill", "os.killpg", "signal.pthread_kill", "syslog.syslog", "webbrowser.open"),
)


class NoSealedProcess(Exception):
    """This system, or this process, has no such copy; the text says why."""


def run_sealed(function: Callable[[], T], seconds: float) -> T:
    """Return what ``function`` returns in a sealed copy of this process; it must be picklable.

    Raises:
        NoSealedProcess: there is no such copy, or it failed.
        TimeoutError: it took longer than ``seconds``.
    """
    check_can_seal()
    read, write = os.pipe()
    with warnings.catch_warnings():
        # From Python 3.12 on a fork with threads warns of locks; a copy that stands still is ended.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        _run_and_end(function, write)
    os.close(write)
    try:
        answer = _read_all(read, time.monotonic() + seconds)
    finally:
        os.close(read)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not answer:
        raise NoSealedProcess("the second run of the step did not end")
    result: T = pickle.loads(answer)
    return result


def check_can_seal() -> None:
    """Raise NoSealedProcess if a sealed copy cannot be made."""
    if sys.platform != "linux" or _landlock_version() < 1:
        raise NoSealedProcess("a step is run again only on Linux with Landlock")
    if torch.cuda.is_initialized():
        raise NoSealedProcess("a step on a GPU is not run again")


def _read_all(pipe: int, deadline: float) -> bytes:
    """What comes until the end of a pipe; TimeoutError if the deadline is earlier."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(pipe, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _run_and_end(function: Callable[[], Any], answer: int) -> None:
    """Run a function in the copy, which ends without cleaning up what belongs to the program."""
    try:
        _seal(answer)
        torch.set_num_threads(1)  # the threads of the pool are not there
        content = pickle.dumps(function())
        while content:
            content = content[os.write(answer, content) :]
    finally:
        os._exit(0)


def _seal(answer: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the original's
    _library().prctl(_END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    _close_to_the_outside(answer)
    _restrict()
    sys.addaudithook(_refuse)
    _leave_out_writing()


def _close_to_the_outside(answer: int) -> None:
    """Replace what is open for writing, and every socket and pipe, by ``/dev/null``."""
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number in (answer, null):
            continue
        with suppress(OSError):
            mode = os.fstat(number).st_mode
            is_file = stat.S_ISREG(mode) and _is_read_only(number)
            if number > 2 and (stat.S_ISDIR(mode) or is_file):
                continue
            os.dup2(null, number)


def _is_read_only(number: int) -> bool:
    import fcntl

    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _landlock_version() -> int:
    return int(_library().syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION))


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _restrict() -> None:
    """Let this process change no file, except in shared memory, and make no connection."""
    library, version = _library(), _landlock_version()
    files = _CHANGES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    wanted = _Ruleset(files, _TCP if version >= 4 else 0)
    size = ctypes.sizeof(wanted) if version >= 4 else ctypes.sizeof(ctypes.c_uint64)
    rules = library.syscall(_CREATE, ctypes.byref(wanted), ctypes.c_size_t(size), 0)
    for path, allowed in ((os.devnull, _WRITE_FILE), (_SHARED_MEMORY, files & ~_REFER)):
        with suppress(FileNotFoundError):
            rule = _PathRule(allowed, os.open(path, os.O_PATH))
            library.syscall(_ADD_RULE, rules, _BENEATH_PATH, ctypes.byref(rule), 0)
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if rules < 0 or library.syscall(_RESTRICT, rules, 0) != 0:
        os._exit(1)
    os.close(rules)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event in _REFUSED:
        raise PermissionError(f"{event} is not allowed in a second run of a step")


def _leave_out_writing() -> None:
    """Let the usual ways to write succeed without an effect, so that the code goes on."""
    original = io.open

    def open_for_reading(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = any(letter in mode for letter in "wax+") and not isinstance(file, int)
        return original(os.devnull if writes else file, mode, *args, **kwargs)

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    builtins.open = io.open = open_for_reading
    os.mkdir = os.makedirs = nothing
    torch.save = nothing
