"""Batches on their way from a reading worker to the main process.

Tensors go through shared memory. torch shares them in a thread of the worker; if that fails, for
example because a container has too little shared memory, the batch is lost and the main process
waits for ever. So batches are packed before, where an error can be caught, and go through a pipe if
they cannot be shared.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from hookscope.errors import HookscopeError, cause

_MORE_FILES = "Use --workers 0, or allow more open files: ulimit -n 1024."


def check_open_files(workers: int) -> None:
    """Check that enough files can be opened for worker processes.

    Beyond the limit a thread of ``multiprocessing`` would fail, and print a traceback.
    """
    needed = 10 + 6 * workers  # measured: 16 with one worker, 16 with two, 36 with five
    copies: list[int] = []
    try:
        while len(copies) < needed:
            copies.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        noun = "process needs" if workers == 1 else "processes need"
        raise HookscopeError(
            f"{workers} worker {noun} about {needed} open files, and the limit leaves"
            f" {len(copies)}.",
            _MORE_FILES,
        ) from error
    finally:
        for copy in copies:
            os.close(copy)


class PackedBatch:
    """A batch as bytes."""

    def __init__(self, data: bytes, unshared: str = "") -> None:
        self.unshared = unshared
        self._data: bytes | None = data
        self._batch: Any = None

    def unpack(self) -> Any:
        """Return the batch."""
        if self._data is not None:
            try:
                self._batch, self._data = pickle.loads(self._data), None
            except (ConnectionError, EOFError):  # the worker has died
                raise
            except (OSError, RuntimeError) as error:  # RuntimeError: no descriptor came
                raise HookscopeError(
                    f"A batch of inputs cannot be received from a worker process: {cause(error)}.",
                    _MORE_FILES,
                ) from error
        return self._batch

    def pin_memory(self) -> PackedBatch:
        """Unpack the batch, and put its tensors in pinned memory; a DataLoader calls this."""
        if hasattr(batch := self.unpack(), "pin_memory"):
            self._batch = batch.pin_memory()
        return self


class Packer:
    """A collate function for workers that packs what another collate function returns."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._unshared = ""

    def __call__(self, rows: Any) -> PackedBatch | HookscopeError:
        """Collate rows, and return the batch packed, or the error if it cannot be sent."""
        batch = self._collate(rows)
        # One failure is enough: what was shared of that batch is not freed while the worker lives.
        if not self._unshared:
            try:
                return PackedBatch(bytes(ForkingPickler.dumps(batch)))
            except Exception as error:
                self._unshared = cause(error)
        try:
            return PackedBatch(pickle.dumps(batch), self._unshared)
        except Exception as error:  # raised by the classes of the user's inputs
            return HookscopeError(
                f"A batch of inputs cannot be sent from a worker process: {cause(error)}.",
                "Use --workers 0.",
            )
