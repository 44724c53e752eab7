"""Error reports: the message, hint and exit status of each exception, for all commands."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

import click

from hookscope.cli.console import Console
from hookscope.errors import (
    FAILED,
    ForwardError,
    HookscopeError,
    is_out_of_memory,
)

# Windows has no EDQUOT.
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


class ErrorReport(NamedTuple):
    """The report of an exception; ``foreseen`` ones are not bugs of hookscope."""

    message: str
    hint: str
    status: int
    foreseen: bool = True


def report_error(error: BaseException, console: Console, command: str = "") -> int:
    """Print the report of ``error``, a failed pass as a result, and return the exit status."""
    if isinstance(error, ForwardError) and error.failure is not None:
        _show_failure(error, console, command)
    fault = explain_error(error)
    if console.verbose > 1 or os.environ.get("HOOKSCOPE_DEBUG", "0") not in ("", "0"):
        import traceback

        console.hint("".join(traceback.format_exception(error)))
    console.error(fault.message, fault.hint)
    if not fault.foreseen:
        console.hint(", ".join(f"{name} {version}" for name, version in versions()))
    return console.failed if fault.status == FAILED else fault.status


def _show_failure(error: ForwardError, console: Console, command: str) -> None:
    if console.json:
        from hookscope.views.forward_failure import failure_document

        console.document(failure_document(command, error))
    else:
        console.show(error)


def explain_error(error: BaseException) -> ErrorReport:
    """Return the report of ``error``."""
    if isinstance(error, HookscopeError):
        return ErrorReport(error.message, error.hint, error.exit_code)
    if isinstance(error, click.ClickException):
        return _usage(error)
    if is_out_of_memory(error):
        return _out_of_memory(error)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in (
        "torch",
        "torchvision",
    ):
        return _broken_torch(error)
    if "operator torchvision::" in str(error):
        return _mismatch()
    if isinstance(error, SystemExit):
        hint = "Move code that should not run on import under: if __name__ == '__main__'."
        return ErrorReport(f"The model's code exited with status {error.code}.", hint, FAILED)
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f" to {error.filename}" if error.filename else ""
        return ErrorReport(
            f"The output could not be written{where}: {error.strerror}.",
            "Free some space, or write to another folder.",
            FAILED,
        )
    if isinstance(error, FileNotFoundError) and error.filename is None and _folder_is_gone():
        hint = "Change to a folder that exists, or use absolute paths."
        return ErrorReport("The working folder was deleted.", hint, FAILED)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        hint = "Set HOOKSCOPE_DEBUG=1 to see the traceback."
        return ErrorReport(f"{error.strerror}{where}.", hint, FAILED)
    return _unknown(error)


def _folder_is_gone() -> bool:
    """Whether the working folder was deleted, so that relative paths cannot be resolved."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def versions() -> Iterator[tuple[str, str]]:
    """Yield names and versions of packages, without importing torch or torchvision."""
    from importlib import metadata

    from hookscope.version import __version__

    yield "hookscope", __version__
    for name in ("torch", "torchvision"):
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "not installed"
    yield "python", ".".join(map(str, sys.version_info[:3]))


def _usage(error: click.ClickException) -> ErrorReport:
    message = " ".join(error.format_message().split())  # Click lists choices on separate lines
    if not message.endswith((".", "?", "?)")):
        message += "."
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "hookscope"
    return ErrorReport(message, f"See: {path} --help", error.exit_code)


def _out_of_memory(error: BaseException) -> ErrorReport:
    if isinstance(error, ImportError):
        hint = "Close other programs, or raise the limit on memory (ulimit -v)."
        return ErrorReport("Memory ran out during the import of a package.", hint, FAILED)
    if "worker process" in str(error):
        hint = "Use fewer --workers, or a smaller --batch."
        return ErrorReport("Memory ran out in a process that reads the inputs.", hint, FAILED)
    hint = "Select fewer layers with --layer, or a smaller input with --shape, --size or --batch."
    return ErrorReport("Out of memory.", hint, FAILED)


def _broken_torch(error: ImportError) -> ErrorReport:
    package = (error.name or "").partition(".")[0]
    repair = (
        f"Install it for this Python: {sys.executable} -m pip install --upgrade torch torchvision"
    )
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return ErrorReport(f"{package} is not installed.", repair, FAILED)
    return ErrorReport(f"{package} is installed but cannot be imported: {error}.", repair, FAILED)


def _mismatch() -> ErrorReport:
    installed = dict(versions())
    return ErrorReport(
        f"torchvision {installed['torchvision']} does not match torch {installed['torch']}.",
        "Install both together, from the same index: "
        f"{sys.executable} -m pip install --upgrade --force-reinstall torch torchvision",
        FAILED,
    )


def _unknown(error: BaseException) -> ErrorReport:
    name = type(error).__name__
    said = " ".join(str(error).split())
    message = f"Unexpected {name}: {said}" if said else f"Unexpected {name}."
    hint = "This is a bug in hookscope. Please report it with the output of HOOKSCOPE_DEBUG=1"
    return ErrorReport(message, f"{hint}{_tracker()}.", FAILED, foreseen=False)


def _tracker() -> str:
    """Return where to report bugs, from the package's metadata."""
    from importlib import metadata

    try:
        links = metadata.metadata("hookscope").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        links = []
    named = dict(link.split(", ", 1) for link in links if ", " in link)
    address = named.get("Issues")
    return f", at {address}" if address else ""
