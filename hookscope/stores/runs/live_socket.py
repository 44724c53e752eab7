"""The socket in the folder of a run, over which a training that runs now is asked.

The training listens on a Unix socket that only its user may open, and looks at it between two
steps. It answers with a file in a folder that the asking process has made in that of the run.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from hookscope.errors import RequestError, StoreError, cause
from hookscope.files.output_path import rank_folders, runs_in
from hookscope.specs.program_options import ProgramOptions
from hookscope.version import __version__

R = TypeVar("R")

SOCKET = "live.sock"
SCRATCH = ".live-"  # what the folder of an answer begins with
_LONGEST = 100  # bytes of the address of a socket; systems take 104 or 108
_STARTED = "Only a training that 'hookscope run' started, and that has not ended, can be asked."


@dataclass(frozen=True)
class LiveRequest:
    """What is asked about the next step. The answer is a file in a folder of the run's."""

    options: ProgramOptions
    layers: tuple[str, ...]
    scratch: str
    version: str = __version__

    def answer_in(self, run: Path) -> Path:
        """Return the file of the answer."""
        return run / Path(self.scratch).name / "answer.safetensors"


@dataclass(frozen=True)
class LiveAnswer:
    """What the training replies.

    Attributes:
        step: the step that was looked at, from 0.
        unmet: a sentence about each thing that was asked for and did not come.
        fault: why there is no answer, and what to do; empty if there is one.
    """

    step: int
    unmet: tuple[str, ...] = ()
    fault: tuple[str, str] | tuple[()] = ()


def can_listen() -> bool:
    """Whether this system has sockets of a user's own; Windows has none."""
    return hasattr(socket, "AF_UNIX") and hasattr(os, "getuid")


@contextmanager
def _address_in(folder: Path) -> Iterator[str]:
    """Yield the address of the socket in a folder, whose path may be longer than an address."""
    path = str(folder.resolve() / SOCKET)
    if len(os.fsencode(path)) <= _LONGEST or sys.platform != "linux":
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def listen(folder: Path) -> socket.socket:
    """Return a socket in a folder that waits for connections and never blocks.

    Raises:
        OSError: the file system of the folder has no sockets.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address_in(folder) as address:
            listener.bind(address)
            os.chmod(address, 0o600)
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _connect(folder: Path) -> Connection:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address_in(folder) as address:
            client.connect(address)
    except OSError:
        client.close()
        raise
    return Connection(client.detach())


def ask(
    run: str | os.PathLike[str],
    options: ProgramOptions,
    layers: Sequence[str],
    read: Callable[[Path], R],
) -> tuple[R, LiveAnswer]:
    """Ask the training of a run about its next step, and wait for it; ``read`` reads the answer.

    Raises:
        RequestError: the training does not run, or is another user's; or it refuses the request.
        StoreError: it ended before the step, or its folder cannot be written.
    """
    folder = _listening_folder(run)
    try:
        with (
            _connect(folder) as connection,
            tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch,
        ):
            request = LiveRequest(options, tuple(layers), Path(scratch).name)
            connection.send(request)
            answer: LiveAnswer = connection.recv()
            if answer.fault:
                raise RequestError(*answer.fault)
            return read(request.answer_in(folder)), answer
    except (FileNotFoundError, ConnectionRefusedError):
        raise RequestError(f"The training of {os.fspath(run)} is not running.", _STARTED) from None
    except (EOFError, ConnectionError):
        raise StoreError(
            f"The training of {os.fspath(run)} ended before its next step did.",
            f"To see what was recorded of it: hookscope show {os.fspath(run)}",
        ) from None
    except OSError as error:
        raise StoreError(
            f"The training of {os.fspath(run)} cannot be asked: {cause(error)}.", _STARTED
        ) from error


def read_result(path: Path) -> Any:
    """Return the result that the training has written, which is a process of this user."""
    return pickle.loads(path.read_bytes())


def _listening_folder(run: str | os.PathLike[str]) -> Path:
    """The folder of a run, or that of the first of several processes, if it is this user's."""
    if not can_listen():
        raise RequestError(
            "A training that runs cannot be asked on Windows.", "Look at its record instead."
        )
    if several := runs_in(run):
        raise RequestError(
            f"{os.fspath(run)} has several runs, and one training is asked.",
            f"Name one of them, such as {several[-1]}.",
        )
    folder = next(iter(rank_folders(run)), Path(run))
    if folder.stat().st_uid != os.getuid():
        raise RequestError(
            f"{os.fspath(run)} is the folder of another user.",
            "Only the user who started a training can ask it.",
        )
    return folder
