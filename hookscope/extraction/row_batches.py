"""Batches of the rows of a dataset, read from image files or from a user's Dataset.

Worker processes read and preprocess the inputs. They inherit the recipe by forking. Without fork
(Windows) the main process reads the inputs itself.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any

from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hookscope.errors import HookscopeError, InputError, cause
from hookscope.files.input_list import InputEntry
from hookscope.inputs.image_decoder import decode_image
from hookscope.inputs.input_reader import sha256
from hookscope.sources.loaded import Recipe
from hookscope.specs.choices import DECODINGS
from hookscope.tensors.nested import as_call, map_tensors, walk

_MORE_FILES = "Use --workers 0, or allow more open files: ulimit -n 1024."

# A batch in shared memory is handed over by a thread of the worker, which waits for the interpreter
# while the worker reads its next rows: milliseconds, in which a small batch is copied many times.
_COPIED_BYTES = 2**20

log = logging.getLogger("hookscope")
_UNSHARED = (
    "workers: batches go through pipes, which is slower, because shared memory (/dev/shm) cannot be"
    " used: %s. Give a container more with --shm-size 2g, use a smaller --batch, or --workers 0"
)
TableEntry = dict[str, Any]  # a line of the table of inputs, without the row's number
Decode = Callable[[bytes, str, int], Image.Image]


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
        size = sum(t.nbytes for _, t in walk(batch.value)) if isinstance(batch, RowBatch) else 0
        # One failure is enough: what was shared of that batch is not freed while the worker lives.
        if size > _COPIED_BYTES and not self._unshared:
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


@dataclass(frozen=True)
class DatasetRow:
    """One input as a tensor, or None if it cannot be used; ``entry`` then has the reason."""

    value: Any
    entry: TableEntry


def first_usable(rows: Dataset[DatasetRow], count: int, what: str, skip_bad: bool) -> Any:
    """Return the value of the first of ``count`` rows that can be used; ``what`` names the rows."""
    for row in (rows[i] for i in range(count)):
        if row.value is not None:
            return row.value
        if not skip_bad:
            raise InputError(row.entry["skipped"], f"Skip such {what} with --skip-bad.")
    raise InputError(f"None of the {count} {what} can be used.", row.entry["skipped"])


@dataclass(frozen=True)
class RowBatch:
    """Rows collated to a call value."""

    rows: Sequence[int]
    value: Any
    entries: tuple[TableEntry, ...]
    bad: tuple[int, ...]
    tokens: int | None = None

    @property
    def mask(self) -> Tensor | None:
        """The attention mask of texts, bool, (rows, positions); None without one."""
        mask = as_call(self.value)[1].get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) != len(self.rows):
            return None
        return mask.bool()

    @property
    def numbers(self) -> str:
        """The numbers of the rows, for messages."""
        return f"Rows {min(self.rows)} to {max(self.rows)}"

    def pin_memory(self) -> RowBatch:
        """Return the batch with tensors in pinned memory; a DataLoader calls this method."""
        return replace(self, value=map_tensors(self.value, lambda path, t: t.pin_memory()))


@dataclass(frozen=True, eq=False)
class ImageRows(Dataset[DatasetRow]):
    """Images, decoded and preprocessed as a plain capture does it."""

    files: Sequence[InputEntry]
    recipe: Recipe
    channels: int
    decode: Decode

    def __len__(self) -> int:
        return len(self.files)

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are stored beside the paths."""
        return list(dict.fromkeys(name for file in self.files for name, _ in file.columns))

    def __getitem__(self, row: int) -> DatasetRow:
        file = self.files[row]
        entry: TableEntry = {"path": file.name, **dict(file.columns)}
        try:
            data = file.read()
            entry |= {"bytes": len(data), "sha256": sha256(data)}
            return DatasetRow(self.recipe.run(self.decode(data, file.name, self.channels)), entry)
        except HookscopeError as error:
            return DatasetRow(None, {**entry, "skipped": error.message})


def make_decoder(mode: str, side: int) -> Decode:
    """Return the function that decodes the bytes of an image file."""
    # With a factor of two the resize that follows still averages over enough pixels.
    return decode_image if mode == DECODINGS[0] else partial(decode_image, at_least=2 * side)


@dataclass(frozen=True, eq=False)
class Collator:
    """Collates rows; a placeholder of zeros replaces inputs that cannot be used."""

    arrange: Callable[[list[Any]], Any]
    placeholder: Any
    count_tokens: Callable[[Any], int] | None = None

    def __call__(self, numbered: Sequence[tuple[int, DatasetRow]]) -> RowBatch | HookscopeError:
        """Return the batch, or the error if the rows cannot be collated."""
        rows = [row for _, row in numbered]
        bad = tuple(i for i, row in enumerate(rows) if row.value is None)
        values = [self.placeholder if row.value is None else row.value for row in rows]
        try:
            value = self.arrange(values)
        except HookscopeError as error:  # returned: raised in a worker it would lose its hint
            return error
        numbers = tuple(number for number, _ in numbered)
        tokens = self.count_tokens(value) if self.count_tokens else None
        return RowBatch(numbers, value, tuple(row.entry for row in rows), bad, tokens)


class _Numbered(Dataset[tuple[int, DatasetRow]]):
    def __init__(self, rows: Dataset[DatasetRow]) -> None:
        self.rows = rows

    def __getitem__(self, row: int) -> tuple[int, DatasetRow]:
        return row, self.rows[row]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[int, DatasetRow]]:
        if hasattr(self.rows, "__getitems__"):
            return list(zip(rows, self.rows.__getitems__(rows), strict=True))
        return [self[row] for row in rows]


def load_batches(
    rows: Dataset[DatasetRow],
    batches: Iterable[Sequence[int]],
    collate: Collator,
    workers: int,
    pin: bool,
) -> Generator[RowBatch]:
    """Yield the batches in order, read ahead by ``workers`` processes, two batches each."""
    options: dict[str, Any] = {"collate_fn": collate}
    if workers and "fork" in multiprocessing.get_all_start_methods():
        options = {
            "collate_fn": Packer(collate),
            "num_workers": workers,
            "prefetch_factor": 2,
            "multiprocessing_context": "fork",
        }
        check_open_files(workers)
    loader = DataLoader(
        _Numbered(rows),
        batch_sampler=map(list, batches),
        worker_init_fn=_ignore_closed_connections,
        pin_memory=pin,
        **options,
    )
    iterator = iter(loader)
    try:
        yield from _received(iterator)
    finally:
        _end_workers(iterator)


def _received(iterator: Iterator[Any]) -> Iterator[RowBatch]:
    told = False
    while True:
        try:
            with report_dead_workers():
                batch = next(iterator, None)
            if isinstance(batch, PackedBatch):
                if batch.unshared and not told:
                    log.warning(_UNSHARED, batch.unshared)
                    told = True
                batch = batch.unpack()
        except (ConnectionError, EOFError) as error:
            raise _worker_died(error) from error
        if batch is None:
            return
        if isinstance(batch, HookscopeError):
            raise batch
        yield batch


def _end_workers(iterator: Iterator[Any]) -> None:
    """End worker processes; else torch raises for a dead one when any child process ends."""
    if end := getattr(iterator, "_shutdown_workers", None):
        try:
            end()
        except RuntimeError as error:
            if not is_dead_worker(error):
                raise


def _ignore_closed_connections(worker: int) -> None:
    """Print no traceback in this worker process if the main process closes a connection early."""
    # A thread of multiprocessing hands the tensors over. If Ctrl-C interrupts the main process in
    # the middle of this, the thread reports the closed connection to sys.excepthook.
    report = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, ConnectionError | EOFError):
            report(kind, error, traceback)

    sys.excepthook = hook


@contextmanager
def report_dead_workers() -> Iterator[None]:
    """Raise HookscopeError if a worker process dies while the block runs.

    torch raises its own error from a signal handler, in the middle of whatever runs at that time.
    """
    try:
        yield
    except RuntimeError as error:
        if is_dead_worker(error):
            raise _worker_died(error) from error
        raise


def is_dead_worker(error: Exception) -> bool:
    """Whether an error is torch's error for a worker process that has died."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")


def _worker_died(error: Exception) -> HookscopeError:
    return HookscopeError(
        f"A worker process that reads inputs has died: {cause(error)}.",
        "It may have run out of memory: use fewer --workers, or 0. Continue the run with --resume.",
    )
