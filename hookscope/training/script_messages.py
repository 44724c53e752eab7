"""What is said on the standard error of a script while it runs, and when it has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hookscope.errors import HookscopeError

_reported: set[str] = set()
_kept: list[list[str]] = []  # the innermost last


def report_fault(failed: str, error: BaseException) -> None:
    """Print a fault on standard error, once for each kind."""
    if failed in _reported:
        return
    _reported.add(failed)
    is_ours = isinstance(error, HookscopeError)  # a sentence, which names the cause itself
    cause = " ".join((str(error) if is_ours else f"{type(error).__name__}: {error}").split())
    text = f"hookscope: {failed}. {cause.rstrip('.')}. The script continues.\n"
    if os.environ.get("HOOKSCOPE_DEBUG", "0") not in ("", "0"):
        import traceback

        text += "".join(traceback.format_exception(error))
    _write(text)


class reported:  # noqa: N801 - used like a function
    """Report an exception of the block; the script does not see it."""

    def __init__(self, failed: str) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            report_fault(self._failed, error)
            return True
        return False


def say(sentence: str) -> None:
    """Print a line on standard error; not through ``logging``, which belongs to the script."""
    _write(f"hookscope: {sentence}\n")


@contextmanager
def kept_messages() -> Iterator[list[str]]:
    """Keep the messages of the block in the list that it yields; the program shows none."""
    messages: list[str] = []
    _kept.append(messages)
    try:
        yield messages
    finally:
        _kept[:] = [others for others in _kept if others is not messages]
        _reported.clear()


def _write(text: str) -> None:
    if _kept:
        _kept[-1].append(text.removeprefix("hookscope: ").rstrip())
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        pass
