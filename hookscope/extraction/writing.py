"""Writing behind the forward pass: one thread fills shards, others finish those that are full.

What takes longest of a shard is its checksum, or sending it where it goes: that runs beside the
filling of the next.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hookscope.errors import StoreError
from hookscope.extraction.planning import Shard
from hookscope.extraction.shards import Growing
from hookscope.results.features.folder import write_json
from hookscope.results.features.location import Place, cannot_write
from hookscope.results.features.manifest import part_name

_FINISHING = 2  # shards that are finished at once; filling another then waits


@dataclass(frozen=True)
class Filled:
    """A batch that is ready to be written; ``lines`` are those of its rows in the table."""

    shard: Shard
    first: int
    values: Any  # what the shard's file takes
    lines: Sequence[dict[str, Any]]


class Writing:
    """Writes batches in order on a thread of its own, within a ``with`` block.

    What is known of a finished shard goes to ``.parts`` at once: that is what a later run goes on
    from. Leaving the block waits for what has been put, unless an error leaves it.

    Args:
        place: the folder where the shards go.
        begin: makes the file of a shard.
    """

    def __init__(self, place: Place, begin: Callable[[Place, Shard], Growing]) -> None:
        self.place = place
        self.begin = begin
        self.bytes = 0
        self._queue: queue.Queue[Filled | None] = queue.Queue(maxsize=2)
        self._error: BaseException | None = None
        self._untold: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._work, name="hookscope-writer", daemon=True)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if error is None:
            self._raise()

    def put(self, filled: Filled) -> None:
        """Hand a batch over; waits while two others wait.

        Raises:
            StoreError: an earlier one could not be written.
        """
        self._raise()
        self._queue.put(filled)

    def _raise(self) -> None:
        if isinstance(self._error, OSError):
            raise cannot_write(f"to {self.place}", self._error) from self._error
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        finishing: deque[Future[None]] = deque()
        with ThreadPoolExecutor(_FINISHING, "hookscope-finisher") as pool:
            try:
                self._fill(pool, finishing)
            except BaseException as error:
                self._error = error
                while self._queue.get() is not None:  # let whoever puts go on, to see the error
                    pass
        for one in finishing:
            self._error = self._error or one.exception()
        self._tell_again()

    def _fill(self, pool: ThreadPoolExecutor, finishing: deque[Future[None]]) -> None:
        file: Growing | None = None
        lines: list[dict[str, Any]] = []
        try:
            while (filled := self._queue.get()) is not None:
                if file is None:
                    file, lines = self.begin(self.place, filled.shard), []
                self.bytes += file.write(filled.first, filled.values)
                lines += filled.lines
                if lines[-1]["row"] + 1 == filled.shard.last:
                    while len(finishing) >= _FINISHING:
                        finishing.popleft().result()
                    finishing.append(pool.submit(self._finish, file, lines))
                    file = None
        finally:
            if file is not None:
                file.discard()

    def _finish(self, file: Growing, lines: list[dict[str, Any]]) -> None:
        try:
            known = file.finish() | {"inputs": lines}
        except BaseException:
            file.discard()
            raise
        try:
            self._tell(known)
        except StoreError:
            self._untold.append(known)

    def _tell(self, known: dict[str, Any]) -> None:
        write_json(self.place, part_name(known["first"]), known)

    def _tell_again(self) -> None:
        """Tell of what is finished and could not be told, now that a shard's beginning is gone."""
        try:
            for known in self._untold:
                self._tell(known)
        except StoreError as error:
            self._error = self._error or error
