"""The socket in the folder of a run, over which a program that runs now is asked.

The program listens on a Unix socket that only its user may open, and looks at it between two
steps. A request and its answer are one JSON message each, which ends with the stream. What was
recorded is in a file that the asking process made, within the folder of the run.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from hookscope.errors import USAGE, RequestError, StoreError, cause
from hookscope.files.atomic_files import remove_stale_files, scratch_file
from hookscope.files.output_path import rank_folders, runs_in
from hookscope.files.shell_words import join_words
from hookscope.specs.program_options import ProgramOptions
from hookscope.version import __version__

R = TypeVar("R")

SOCKET = "live.sock"
_ANSWER = "answer.safetensors"
_UNREADY = ".new"
_LONGEST = 98  # bytes of an address without _UNREADY; systems take 103 or 107 in all
_STARTED = (
    "A program can be asked that 'hookscope run' started on this machine without a mode such as"
    " --list, and that has not ended."
)


@dataclass(frozen=True)
class LiveRequest:
    """What is asked about the next step; the answer goes into ``folder``, within the run's."""

    options: ProgramOptions
    layers: tuple[str, ...]
    folder: str

    def to_bytes(self) -> bytes:
        """Return the message."""
        return json.dumps({"version": __version__} | asdict(self)).encode()

    @classmethod
    def read(cls, message: bytes) -> LiveRequest:
        """Read a message.

        Raises:
            RequestError: it is of another version of hookscope, or no request.
        """
        try:
            request = json.loads(message)
            if (version := request.pop("version")) == __version__:
                options = ProgramOptions(**request.pop("options"))
                return cls(options, tuple(request.pop("layers")), **request)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise RequestError("This is not a request.", "Use a command of hookscope.") from error
        raise RequestError(
            f"The program runs with hookscope {__version__}, and the command with {version}.",
            "Use the same version for both.",
        )

    def answer_in(self, run: Path) -> Path:
        """Return the file of the answer."""
        return run / Path(self.folder).name / _ANSWER


@dataclass(frozen=True)
class LiveFault:
    """Why there is no answer, what to do, and the exit status."""

    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True)
class LiveAnswer:
    """What the program replies.

    Attributes:
        step: the step that was looked at, from 0.
        unmet: a sentence about each thing that was asked for and did not come.
        fault: why there is no answer; None if there is one.
    """

    step: int
    unmet: tuple[str, ...] = ()
    fault: LiveFault | None = None

    def to_bytes(self) -> bytes:
        """Return the message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, message: bytes) -> LiveAnswer:
        """Read a message."""
        answer = json.loads(message)
        fault = answer["fault"] and LiveFault(**answer["fault"])
        return cls(answer["step"], tuple(answer["unmet"]), fault)


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


def is_of_this_user(client: socket.socket) -> bool:
    """Whether the other end is a process of this user; only Linux tells."""
    if sys.platform != "linux":
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())


def listen(folder: Path) -> socket.socket:
    """Return a socket in a folder that waits for connections and never blocks.

    Raises:
        OSError: the file system of the folder has no sockets.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address_in(folder) as address:
            unready = address + _UNREADY
            Path(unready).unlink(missing_ok=True)
            listener.bind(unready)
            os.chmod(unready, 0o600)
            listener.listen()
            os.replace(unready, address)  # who sees the socket may connect
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def remove_stale_answers(folder: Path) -> None:
    """Remove what asking processes that were killed left in the folder of a run."""
    remove_stale_files(folder / _ANSWER)


def ask(
    run: str | os.PathLike[str],
    options: ProgramOptions,
    layers: Sequence[str],
    read: Callable[[Path], R],
) -> tuple[R, LiveAnswer]:
    """Ask the program of a run about its next step, and wait for it; ``read`` reads the answer.

    The step of a program that trains nothing is the next call of the model that has the layers.

    Raises:
        RequestError: the program does not run, or is another user's; or it refuses the request.
        StoreError: it ended before the step, or a file cannot be written.
    """
    name, folder = os.fspath(run), _listening_folder(run)
    try:
        return _converse(folder, options, layers, read)
    except (FileNotFoundError, ConnectionRefusedError):
        raise RequestError(f"No program answers in {name}.", _STARTED) from None
    except ConnectionError:
        raise StoreError(
            f"The program of {name} ended before its next step did.",
            f"To see what was recorded of it: {join_words(['hookscope', 'show', name])}",
        ) from None
    except OSError as error:
        raise StoreError(
            f"The program of {name} cannot be asked: {cause(error)}.", _STARTED
        ) from error


def _converse(
    folder: Path, options: ProgramOptions, layers: Sequence[str], read: Callable[[Path], R]
) -> tuple[R, LiveAnswer]:
    with _connected(folder) as client, scratch_file(folder / _ANSWER) as scratch:
        client.sendall(LiveRequest(options, tuple(layers), scratch.parent.name).to_bytes())
        client.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: client.recv(1 << 16), b""))
        if not reply:
            raise ConnectionResetError
        answer = LiveAnswer.read(reply)
        if answer.fault is not None:
            error = RequestError if answer.fault.exit_code == USAGE else StoreError
            raise error(answer.fault.message, answer.fault.hint)
        return read(scratch), answer


@contextmanager
def _connected(folder: Path) -> Iterator[socket.socket]:
    if not stat.S_ISSOCK((folder / SOCKET).lstat().st_mode):  # a link may lead to any service
        raise RequestError(f"{folder / SOCKET} is not a socket.", _STARTED)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        with _address_in(folder) as address:
            client.connect(address)
        if not is_of_this_user(client):
            raise RequestError(f"Another user listens in {folder}.", _STARTED)
        yield client


def read_result(path: Path) -> Any:
    """Return the result that the program has written, which is a process of this user."""
    return pickle.loads(path.read_bytes())


def _listening_folder(run: str | os.PathLike[str]) -> Path:
    """The folder of a run, or that of the first of several processes, if it is this user's."""
    if not can_listen():
        raise RequestError(
            "A program that runs cannot be asked on Windows.", "Look at its record instead."
        )
    if several := runs_in(run):
        raise RequestError(
            f"{os.fspath(run)} has several runs, and one program is asked.",
            f"Name one of them, such as {several[-1]}.",
        )
    folder = next(iter(rank_folders(run)), Path(run))
    if folder.stat().st_uid != os.getuid():
        raise RequestError(
            f"{os.fspath(run)} is the folder of another user.",
            "Only the user who started a program can ask it.",
        )
    return folder
