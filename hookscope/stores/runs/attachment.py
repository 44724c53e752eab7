"""Asks a process that hookscope did not start: it runs a script there, which listens in a folder.

The folder is new, and only its user may open it. Python 3.14 runs the script at the next point at
which the main thread of the process could also handle a signal. The script starts a thread and
returns. The conversation is the one with a training, over the socket in the folder.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hookscope.errors import RequestError, StoreError, cause
from hookscope.specs.program_options import ProgramOptions
from hookscope.stores.runs.live_socket import SOCKET, LiveAnswer, can_listen, converse

R = TypeVar("R")

FAULT = "fault"  # the file in which the script says why it does not listen
_SCRIPT = "attach.py"
_START = 10  # seconds that the process has at least until it listens
_PAUSE = 0.01
_INSTEAD = "Start the program with 'hookscope run' instead."

# Nothing of it may reach the program: what fails is written to a file.
_LISTEN = """
def _listen(folder, home, wait):
    import sys
    try:
        try:
            import hookscope
        except ImportError:
            sys.path.append(home)
        else:
            home = None
        from hookscope.training.attached_process import serve
        serve(folder, wait)
    except BaseException as error:
        _note(folder, error)
    finally:
        if home in sys.path:
            sys.path.reverse()
            sys.path.remove(home)
            sys.path.reverse()

def _note(folder, error):
    try:
        with open(folder + "/{fault}", "w") as file:
            file.write(type(error).__name__ + ": " + str(error))
    except OSError:
        pass

try:
    import threading
    threading.Thread(target=_listen, args={arguments!r}, daemon=True, name="hookscope").start()
except BaseException as error:
    _note({arguments!r}[0], error)
"""
# What the process runs if it comes to the script when nobody waits for it any more.
_LEAVE = "import shutil\nshutil.rmtree({folder!r}, ignore_errors=True)\n"


def ask_process(
    pid: int,
    options: ProgramOptions,
    layers: Sequence[str],
    read: Callable[[Path], R],
    wait: int,
) -> tuple[R, LiveAnswer]:
    """Ask a process about the next calls of its models; ``read`` reads the answer.

    Args:
        pid: the number of the process.
        options: what is done with the models.
        layers: patterns of layers to record.
        read: reads the file of the answer.
        wait: seconds for which the process follows calls at most.

    Raises:
        RequestError: no such process, or it cannot be entered, or it refuses the request.
        StoreError: it ended, or did not run the script in time.

    Example:
        >>> from hookscope.stores.runs.live_socket import read_result
        >>> try:
        ...     ask_process(1 << 30, ProgramOptions(list=True), (), read_result, 1)
        ... except RequestError as error:
        ...     print(error.message)
        No process has the number 1073741824.
    """
    _check_process(pid)
    folder = Path(tempfile.mkdtemp(prefix="hookscope-attach-"))
    is_expected = False  # whether the process may still come to the script
    try:
        home = str(Path(__file__).resolve().parents[3])
        arguments = (str(folder), home, wait)
        (folder / _SCRIPT).write_text(_LISTEN.format(fault=FAULT, arguments=arguments))
        execute_in(pid, folder / _SCRIPT)
        is_expected = True
        _await_listener(pid, folder, max(wait, _START))
        is_expected = False
        return converse(folder, options, layers, read)
    except ConnectionError:
        is_expected = False
        raise StoreError(
            f"Process {pid} ended before it answered.", f"Nothing was recorded. {_INSTEAD}"
        ) from None
    except OSError as error:
        raise StoreError(f"Process {pid} cannot be asked: {cause(error)}.", _INSTEAD) from error
    finally:
        if is_expected and not (folder / FAULT).exists():
            (folder / "later").write_text(_LEAVE.format(folder=str(folder)))
            os.replace(folder / "later", folder / _SCRIPT)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def execute_in(pid: int, script: Path) -> None:
    """Let another process run a script in its main thread.

    Raises:
        RequestError: this Python cannot do it, or may not.
    """
    execute: Callable[[int, str], None] | None = getattr(sys, "remote_exec", None)
    if execute is None:
        raise RequestError(
            "'hookscope attach' needs Python 3.14 or newer, of the same minor version for both"
            f" processes. This is Python {platform.python_version()}, which has no"
            " sys.remote_exec.",
            _INSTEAD,
        )
    try:
        execute(pid, str(script))
    except (OSError, RuntimeError, ValueError) as error:
        version = ".".join(platform.python_version_tuple()[:2])
        raise RequestError(
            f"Process {pid} cannot be entered: {cause(error)}.",
            f"It must run Python {version}, as this command does, and the system must let a process"
            f" look into another one, as a debugger does. {_INSTEAD}",
        ) from error


def _check_process(pid: int) -> None:
    if not can_listen():
        raise RequestError("A process cannot be asked on Windows.", _INSTEAD)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise RequestError(
            f"No process has the number {pid}.", "'ps' lists the processes that run."
        ) from None
    except PermissionError:
        is_own = False
    else:  # the root user may send signals to all
        place = Path(f"/proc/{pid}")
        is_own = not place.exists() or place.stat().st_uid == os.getuid()
    if not is_own:
        raise RequestError(
            f"Process {pid} is another user's.", "Only the user who started a process can ask it."
        )


def _await_listener(pid: int, folder: Path, wait: int) -> None:
    """Wait until the process listens, which has been told to run the script."""
    until = time.monotonic() + wait
    while not (folder / SOCKET).exists():
        if (folder / FAULT).exists():
            time.sleep(_PAUSE)  # until it is written
            text = (folder / FAULT).read_text()
            raise StoreError(f"Process {pid} could not listen: {text}.", _INSTEAD)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            raise ConnectionResetError from None
        if time.monotonic() > until:
            raise StoreError(
                f"Process {pid} came to no point within {wait} seconds at which it can be asked.",
                "Its main thread may wait in code that is not Python's. Try again, with a longer"
                " --wait.",
            )
        time.sleep(_PAUSE)
