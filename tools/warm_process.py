"""Commands run in forks of a process that has imported torch, torchvision and hookscope.

Importing them takes seconds, again for each of some thousand commands. A fork has them at once; all
else is what ``python -m hookscope`` gives a command: a process, streams, a folder, an environment
and an exit status of its own. What a command imports, and when, is not seen here. The process that
forks has one thread and does nothing else. What is settled when Python starts cannot be changed in
a fork: for another such setting, and on other systems than Linux, a command gets a process of its
own.

``python -m tools.warm_process FD`` is that process; it reads requests from the socket FD.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent

# Read when Python starts, or when a library is imported that the process has imported.
_AT_START = ("PYTHON", "LC_", "LANG", "TORCH_", "OMP_", "MKL_", "KMP_", "CUDA_", "HF_")
_LATER = {"TORCH_HOME"}

_LONGEST = 1 << 20  # bytes of a request

# Modules of hookscope that no command imports.
_NOT_OF_COMMANDS = ("__main__", "pytest_plugin", "notebook")


@dataclass(frozen=True)
class Finished:
    """A process that ended: its exit status and what it wrote."""

    rc: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Request:
    """A command to run, or a script with its arguments."""

    arguments: list[str]
    cwd: str
    environment: dict[str, str]
    script: str | None = None


class WarmProcess:
    """The process that forks, started in ``environment`` with the first command."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        stdin: str = "",
        timeout: float = 300,
        script: Path | None = None,
    ) -> Finished:
        """Run ``hookscope ARGUMENTS``, or ``python SCRIPT ARGUMENTS``, and wait for its end.

        Raises:
            subprocess.TimeoutExpired: it ran for longer than ``timeout`` seconds, and was killed.
        """
        (stdin_end, our_in), (our_out, stdout), (our_err, stderr) = (os.pipe() for _ in range(3))
        read: dict[int, bytes] = {}
        threads = [
            threading.Thread(target=_write, args=(our_in, stdin.encode())),
            threading.Thread(target=_read, args=(our_out, read)),
            threading.Thread(target=_read, args=(our_err, read)),
        ]
        for thread in threads:
            thread.start()
        path = None if script is None else str(script)
        request = Request(list(arguments), str(cwd), {**environment}, path)
        rc = self._wait_for(request, (stdin_end, stdout, stderr), timeout)
        for thread in threads:
            thread.join()
        out, err = (_newlines(read[end].decode()) for end in (our_out, our_err))
        return Finished(rc, out, err)

    def run_on_terminal(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        columns: int,
        stdout: Path | None = None,
    ) -> tuple[int, bytes]:
        """Run ``hookscope ARGUMENTS`` on a terminal of 40 lines, its result perhaps in a file.

        Returns:
            The exit status, and what the terminal got.
        """
        import fcntl
        import termios

        ours, terminal = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        out = os.dup(terminal) if stdout is None else os.open(stdout, os.O_WRONLY | os.O_CREAT)
        read: dict[int, bytes] = {}
        thread = threading.Thread(target=_read, args=(ours, read))
        thread.start()
        request = Request(list(arguments), str(cwd), {**environment})
        rc = self._wait_for(request, (terminal, out, os.dup(terminal)), 300)
        thread.join()
        return rc, read[ours]

    def close(self) -> None:
        """End the process."""
        if self._socket is not None and self._process is not None:
            # Not only closed: a process that a test forked may have a copy of the socket.
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._process.wait()

    def _wait_for(self, request: Request, streams: Sequence[int], timeout: float) -> int:
        """Run a request with its three streams, which are then closed; return the exit status."""
        if not self._can_fork(request.environment):
            return _run_process(request, streams, timeout)
        channel = self._start()
        socket.send_fds(channel, [json.dumps(asdict(request)).encode()], list(streams))
        _close(streams)
        pid = _receive(channel)["pid"]
        timer = threading.Timer(timeout, os.kill, (pid, signal.SIGKILL))
        timer.start()
        rc = _receive(channel)["rc"]
        late = not timer.is_alive()
        timer.cancel()
        if late:
            raise subprocess.TimeoutExpired(["hookscope", *request.arguments], timeout)
        return rc

    def _can_fork(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork behaves as a process started with ``environment``."""
        return sys.platform == "linux" and _settled(environment) == _settled(self._environment)

    def _start(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tools.warm_process", str(theirs.fileno())],
                    cwd=REPO,
                    env=self._environment,
                    pass_fds=[theirs.fileno()],
                )
        return self._socket


def _run_process(request: Request, streams: Sequence[int], timeout: float) -> int:
    """Run a request in a process of its own."""
    words = ["-m", "hookscope"] if request.script is None else [request.script]
    command = [sys.executable, *words, *request.arguments]
    stdin, stdout, stderr = streams
    with subprocess.Popen(
        command,
        cwd=request.cwd,
        env=request.environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    ) as process:
        _close(streams)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _close(streams: Sequence[int]) -> None:
    for stream in streams:
        os.close(stream)


def _settled(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_AT_START) and name not in _LATER
    }


def _receive(channel: socket.socket) -> dict[str, int]:
    answer: dict[str, int] = json.loads(channel.recv(_LONGEST))
    return answer


def _write(end: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(end, "wb") as file:
        file.write(data)


def _read(end: int, into: dict[int, bytes]) -> None:
    """Read all that a process writes; a terminal that it has left cannot be read any more."""
    read = []
    with contextlib.suppress(OSError):
        while data := os.read(end, 1 << 16):
            read.append(data)
    os.close(end)
    into[end] = b"".join(read)


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as in text=True of subprocess


def import_for_forks() -> None:
    """Import what commands import, and freeze all that is imported by now.

    A collection in a fork then need not touch, and thereby copy, any of it.
    """
    import hookscope

    for module in pkgutil.walk_packages(hookscope.__path__, "hookscope."):
        if module.name.rpartition(".")[2] not in _NOT_OF_COMMANDS:
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def _serve(channel: socket.socket) -> None:
    """Fork for each request, until the other end is closed."""
    import blake3  # noqa: F401
    import click  # noqa: F401
    import rich.markdown
    import rich.progress  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torchvision  # noqa: F401

    import_for_forks()
    # What PyTorch would take down at the end of a process takes longer than most commands.
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    while True:
        data, streams, _, _ = socket.recv_fds(channel, _LONGEST, 3)
        if not data:
            os._exit(0)  # at an orderly end nanobind reports frozen objects as leaks
        pid = os.fork()
        if not pid:
            channel.close()
            request = Request(**json.loads(data))
            _become(request, streams)
            # Freeing what is imported would take longer than most commands.
            os._exit(_run(request.script))
        _close(streams)
        channel.send(json.dumps({"pid": pid}).encode())
        _, status = os.waitpid(pid, 0)
        channel.send(json.dumps({"rc": os.waitstatus_to_exitcode(status)}).encode())


def _run(script: str | None) -> int:
    """Run the command, or a script, and its end as in a process; return the exit status."""
    status = 1
    try:
        if script is None:
            runpy.run_module("hookscope", run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _become(request: Request, streams: list[int]) -> None:
    for number, (stream, name) in enumerate(
        zip(streams, ("stdin", "stdout", "stderr"), strict=True)
    ):
        os.dup2(stream, number)
        os.close(stream)
        old = getattr(sys, name)  # it remembers whether its own file could seek
        new = open(  # noqa: SIM115  (for as long as the fork lives)
            number,
            "w" if number else "r",
            buffering=1 if name == "stderr" else -1,
            encoding=old.encoding,
            errors=old.errors,
            closefd=False,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[0] = request.cwd
    sys.argv[1:] = request.arguments


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
