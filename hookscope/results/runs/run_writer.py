"""Writes a run folder while a script trains. Whatever kills the process, what was written stays.

Rows are kept in memory for up to a second, or until there are 64, and then written as a file; see
``row_blocks``. A fault of the disk does not reach the script: writing ends, and ``run.json`` says
so if it can still be written.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from hookscope.errors import ResultsFileError, StoreError, cause
from hookscope.results.runs.row_blocks import BlockFile, RowBlock, concatenate
from hookscope.results.runs.run_info import (
    EVENTS_FILE,
    SERIES_FILE,
    RunEvent,
    RunInfo,
    write_info,
)
from hookscope.results.runs.series import TABLES, Series

log = logging.getLogger("hookscope")

MAX_ROWS = 64  # in memory
MAX_SECONDS = 1.0  # that a row waits in memory
MERGED_BYTES = 16 * 2**20  # files larger than this are not merged any more


class RunWriter:
    """Writes one run folder.

    Args:
        folder: an existing empty folder.
        info: what is known at the start. The caller changes it and calls ``write_run_info``.
        warn: called once with a sentence if the record cannot be complete.
        place: the folder as messages name it; the same if None.

    Attributes:
        failed: why writing ended; empty as long as it works.
    """

    def __init__(
        self,
        folder: Path,
        info: RunInfo,
        warn: Callable[[str], None] = log.warning,
        place: Path | None = None,
    ) -> None:
        self.warn = warn
        self.folder = folder
        self.place = folder if place is None else place
        self.info = info
        self.failed = ""
        self._process = os.getpid()
        self._numbers: dict[Series, int] = {}
        self._rows: dict[str, list[RowBlock]] = {table: [] for table in TABLES}
        self._written = dict.fromkeys(TABLES, 0)
        self._files: dict[str, list[BlockFile]] = {table: [] for table in TABLES}
        self._last_flush = time.monotonic()
        self.write_run_info()

    def add_row(
        self, table: str, step: int, seconds: float, values: Mapping[Series, float]
    ) -> None:
        """Add a row; it is on the disk about a second later, when another row comes.

        Args:
            table: ``steps`` or ``layers``.
            step: number of the step, from 0.
            seconds: since the run began.
            values: the numbers; others are missing in this row.
        """
        if not values or not self._writes():
            return
        numbers = self._numbers_of(values)
        row = dict(zip(numbers, values.values(), strict=True))
        self._rows[table].append(RowBlock.of_row(step, seconds, row))
        is_old = time.monotonic() - self._last_flush >= MAX_SECONDS
        if is_old or len(self._rows[table]) >= MAX_ROWS:
            self.flush()

    def add_event(self, event: RunEvent) -> None:
        """Append an event; it is on the disk at once."""
        self._append(EVENTS_FILE, [event])

    def flush(self) -> None:
        """Write all rows that are in memory."""
        self._last_flush = time.monotonic()
        for table, rows in self._rows.items():
            if rows and self._writes():
                self._attempt_write(table, concatenate(rows))
                rows.clear()

    @property
    def series(self) -> Collection[Series]:
        """All series that had a value in some row."""
        return self._numbers.keys()

    def rows_of(self, table: str) -> int:
        """Return how many rows of a table are on the disk."""
        return self._written[table]

    def write_run_info(self) -> None:
        """Replace ``run.json`` by the present content of ``info``."""
        if os.getpid() != self._process:
            return
        try:
            write_info(self.folder, self.info)
        except StoreError as error:
            self._fail(error.message)

    def _writes(self) -> bool:
        # A forked process inherits the writer, and must not write.
        return not self.failed and os.getpid() == self._process

    def _numbers_of(self, values: Iterable[Series]) -> list[int]:
        new = [series for series in values if series not in self._numbers]
        for series in new:
            self._numbers[series] = len(self._numbers)
        # Before the rows that refer to them.
        self._append(SERIES_FILE, new)
        return [self._numbers[series] for series in values]

    def _append(self, name: str, lines: Iterable[tuple[object, ...]]) -> None:
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        if not text or not self._writes():
            return
        try:
            with open(self.folder / name, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self._fail(f"Cannot write {self.place / name}: {cause(error)}.")

    def _attempt_write(self, table: str, block: RowBlock) -> None:
        first = self._written[table]
        file = BlockFile.named(self.folder, table, first, first + len(block) - 1)
        try:
            file.write(block)
            self._written[table] += len(block)
            self._files[table].append(file)
            self._merge(self._files[table])
        except (StoreError, ResultsFileError) as error:
            self._fail(error.message)
        except OSError as error:  # a file was removed while it was to be merged
            self._fail(f"Cannot merge the files of {self.place}: {cause(error)}.")

    def _merge(self, files: list[BlockFile]) -> None:
        """Merge the last files while they are of similar size, so that there are only a few.

        Each row is written again about log2(rows) times.
        """
        while len(files) > 1 and files[-2].rows <= files[-1].rows:
            pair = files[-2:]
            if sum(file.path.stat().st_size for file in pair) > MERGED_BYTES:
                return
            merged = BlockFile.named(self.folder, pair[0].table, pair[0].first, pair[1].last)
            merged.write(concatenate([file.read() for file in pair]))
            files[-2:] = [merged]
            for file in pair:
                file.path.unlink(missing_ok=True)

    def _fail(self, message: str) -> None:
        if self.failed:  # it was said before
            return
        self.failed = message
        for rows in self._rows.values():
            rows.clear()
        self.warn(f"the record of this run is incomplete: {message} The script continues.")
        self.info["incomplete"] = message
        try:
            write_info(self.folder, self.info)
        except StoreError:
            return  # the disk is full, or the folder is gone: it was said above
