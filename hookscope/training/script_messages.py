"""What is said on the standard error of a script while it runs, and when it has ended."""

from __future__ import annotations

import os
import sys

from hookscope.errors import HookscopeError

_LONGEST = 300  # characters of an error of another package
_reported: set[str] = set()


def report_fault(failed: str, error: BaseException) -> None:
    """Print a fault on standard error, once for each kind."""
    if failed in _reported:
        return
    _reported.add(failed)
    is_ours = isinstance(error, HookscopeError)  # a sentence, which names the cause itself
    cause = " ".join((str(error) if is_ours else f"{type(error).__name__}: {error}").split())
    if not is_ours and len(cause) > _LONGEST:
        cause = f"{cause[:_LONGEST]}..."
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


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        pass
