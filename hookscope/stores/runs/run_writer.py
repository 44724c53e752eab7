"""Writes a run folder while a script trains. Whatever kills the process, what was written stays.

Rows are kept in memory for up to a second, or until they have 100,000 values, and then written as
a file; see ``row_blocks``. A fault of the disk does not reach the script: writing ends, and
``run.json`` says so if it can still be written.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from hookscope.errors import ResultsFileError, StoreError, cause
from hookscope.results.fingerprint import ModelFingerprint
from hookscope.stores.runs.row_blocks import BlockFile, RowBlock, concatenate
from hookscope.stores.runs.run_info import EVENTS_FILE, SERIES_FILE, RunEvent, RunInfo, write_info
from hookscope.stores.runs.series import TABLES, Series
from hookscope.stores.runs.step_fingerprints import fingerprint_path

log = logging.getLogger("hookscope")

MAX_VALUES = 100_000  # in memory
MAX_SECONDS = 1.0  # that a row waits in memory
FAN = 4  # files that are merged to one
MERGED_BYTES = 16 * 2**20  # files larger than this are not merged any more


class WaitingRows:
    """Rows of a table that are not written yet."""

    def __init__(self) -> None:
        self.size = 0
        self._blocks: list[RowBlock] = []
        # Rows that have the same series one after the other, and become a block together.
        self._series: list[int] = []
        self._steps: list[int] = []
        self._times: list[float] = []
        self._values: list[list[float]] = []

    def add(self, step: int, seconds: float, series: list[int], values: list[float]) -> None:
        """Add a row; ``series`` are the numbers of the series that ``values`` belong to."""
        if series != self._series:
            self._close_block()
            self._series = series
        self._steps.append(step)
        self._times.append(seconds)
        self._values.append(values)
        self.size += len(values)

    def take(self) -> RowBlock:
        """Return all rows, and forget them."""
        self._close_block()
        blocks, self._blocks, self.size = self._blocks, [], 0
        return concatenate(blocks)

    def _close_block(self) -> None:
        if self._steps:
            rows = RowBlock.of_rows(self._steps, self._times, self._series, self._values)
            self._blocks.append(rows)
            self._steps, self._times, self._values = [], [], []


class RunWriter:
    """Writes one run folder."""

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
        self._rows = {table: WaitingRows() for table in TABLES}
        self._last: dict[str, tuple[list[Series], list[int]]] = {
            table: ([], []) for table in TABLES
        }
        self._written = dict.fromkeys(TABLES, 0)
        self._files: dict[str, list[BlockFile]] = {table: [] for table in TABLES}
        self._last_flush = time.monotonic()
        self.write_run_info()

    def add_row(
        self, table: str, step: int, seconds: float, values: Mapping[Series, float]
    ) -> None:
        """Add a row; it is on the disk about a second later, when another row comes."""
        if not values or not self._writes():
            return
        rows = self._rows[table]
        rows.add(step, seconds, self._numbers_of(table, list(values)), list(values.values()))
        is_old = time.monotonic() - self._last_flush >= MAX_SECONDS
        if is_old or rows.size >= MAX_VALUES:
            self.flush()

    def add_event(self, event: RunEvent) -> None:
        """Append an event; it is on the disk at once."""
        self._append(EVENTS_FILE, [event])

    def add_fingerprint(self, model: str, step: int, fingerprint: ModelFingerprint) -> None:
        """Write the fingerprint of a model in one step; it is on the disk at once."""
        if not self._writes():
            return
        path = fingerprint_path(self.folder, model, step)
        try:
            path.parent.mkdir(exist_ok=True)
            fingerprint.save(path)
        except (OSError, StoreError) as error:
            self._fail(error.message if isinstance(error, StoreError) else cause(error))

    def flush(self) -> None:
        """Write all rows that are in memory."""
        self._last_flush = time.monotonic()
        for table, rows in self._rows.items():
            if rows.size and self._writes():
                self._attempt_write(table, rows.take())

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

    def _numbers_of(self, table: str, names: list[Series]) -> list[int]:
        last, numbers = self._last[table]
        if names == last:  # as in most rows: the names are the same objects
            return numbers
        new = [series for series in names if series not in self._numbers]
        for series in new:
            self._numbers[series] = len(self._numbers)
        # Before the rows that refer to them.
        self._append(SERIES_FILE, new)
        numbers = [self._numbers[series] for series in names]
        self._last[table] = names, numbers
        return numbers

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
        """Merge the last files of similar size: a row is written about log4(rows) times."""
        while len(files) >= FAN and files[-FAN].rows < FAN * files[-1].rows:
            parts = files[-FAN:]
            if sum(file.path.stat().st_size for file in parts) > MERGED_BYTES:
                return
            merged = BlockFile.named(self.folder, parts[0].table, parts[0].first, parts[-1].last)
            merged.write(concatenate([file.read() for file in parts]))
            files[-FAN:] = [merged]
            for file in parts:
                file.path.unlink(missing_ok=True)

    def _fail(self, message: str) -> None:
        if self.failed:  # it was said before
            return
        self.failed = message
        self._rows = {table: WaitingRows() for table in TABLES}
        self.warn(f"the record of this run is incomplete: {message} The script continues.")
        self.info["incomplete"] = message
        try:
            write_info(self.folder, self.info)
        except StoreError:
            return  # the disk is full, or the folder is gone: it was said above
