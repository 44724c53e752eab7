"""The hash of weights files, computed by a thread while the model is built and run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any


class BackgroundHash:
    """A hash that a thread computes from now on, and that ``result`` waits for.

    A thread that only reads and hashes hardly holds the interpreter's lock, and the model then
    finds its weights in the cache of the operating system.

    Example:
        >>> BackgroundHash(str.lower, "AF1349B9").result()
        'af1349b9'
    """

    def __init__(self, compute: Callable[..., str], *arguments: Any) -> None:
        self._compute = partial(compute, *arguments)
        self._process = os.getpid()
        self._result: str | None = None
        self._error: Exception | None = None
        # It ends with the process, which need not wait after an error for a hash of many gigabytes.
        self._thread = threading.Thread(target=self._run, name="hookscope-hash", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._compute()
        except Exception as error:
            self._error = error

    def result(self) -> str:
        """Return the hash, after it is computed."""
        if self._process == os.getpid():
            self._thread.join()
        elif self._result is None and self._error is None:  # the thread is not in a forked process
            self._run()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
