"""Hashes of files; a thread can compute that of weights while the model is built and run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

# Not blake3.AUTO: its shared pool of threads does not survive a fork.
HASH_THREADS = min(os.cpu_count() or 1, 8)
# Bytes that are read at a time, into the same memory: it stays in the processor's cache, and new
# memory for each part takes as long as the hash.
_HASHED = 1 << 22


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    import hashlib  # its library takes 10 ms to load

    return _digest(hashlib.sha256(), path)  # hashlib.file_digest is of Python 3.11


def blake3_of(path: str | os.PathLike[str]) -> str:
    """Return the BLAKE3 of a file as ``b3sum`` prints it: on each core faster than SHA-256."""
    from blake3 import blake3

    return _digest(blake3(max_threads=HASH_THREADS), path)


def _digest(digest: Any, path: str | os.PathLike[str]) -> str:
    """Return the digest of a file's bytes in hexadecimal."""
    window = memoryview(bytearray(_HASHED))
    # Not mapped, which would count as memory of this process.
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(window):
            digest.update(window[:count])
    text: str = digest.hexdigest()
    return text


class BackgroundHash:
    """A hash that a thread computes from now on, and that ``result`` waits for."""

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
