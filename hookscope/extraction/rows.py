"""What the rows of a dataset are read from: image files, or a Dataset of the user's own.

Reading and preprocessing happen in worker processes, which inherit the recipe by forking; where
processes cannot be forked (Windows) they happen in the one process there is.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, Dataset

from hookscope.errors import HookscopeError, cause
from hookscope.extraction.decoding import Decode
from hookscope.inputs.reading import sha256
from hookscope.sources.loaded import Recipe
from hookscope.specs.input_list import Entry
from hookscope.tensors.nested import map_tensors

Told = dict[str, Any]  # a line of the table of inputs, without the row's number


@dataclass(frozen=True)
class Row:
    """One input as a tensor, or None where it cannot be used; ``told`` then says why."""

    value: Any
    told: Told


@dataclass(frozen=True)
class RowBatch:
    """Rows put together to a call value; ``bad`` are the places that hold a blank."""

    rows: range
    value: Any
    told: tuple[Told, ...]
    bad: tuple[int, ...]

    def pin_memory(self) -> RowBatch:
        """Return it with the tensors in pinned memory; a DataLoader looks for this method."""
        return replace(self, value=map_tensors(self.value, lambda path, t: t.pin_memory()))


class ImageRows(Dataset[Row]):
    """Images, each decoded and preprocessed as a plain capture does it.

    Args:
        entries: one a row.
        recipe: how an image becomes a tensor.
        channels: 3, or 1 for grey.
        decode: makes an image of a file's bytes.
    """

    def __init__(
        self, entries: Sequence[Entry], recipe: Recipe, channels: int, decode: Decode
    ) -> None:
        self.entries = entries
        self.recipe = recipe
        self.channels = channels
        self.decode = decode

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, row: int) -> Row:
        entry = self.entries[row]
        told: Told = {"path": entry.name}
        try:
            data = entry.read()
            told |= {"bytes": len(data), "sha256": sha256(data)}
            return Row(self.recipe.run(self.decode(data, entry.name, self.channels)), told)
        except HookscopeError as error:
            return Row(None, {**told, "skipped": error.message})


class Collator:
    """Puts rows together; a blank of zeros stands in for what cannot be used.

    Args:
        arrange: puts the values of rows together to a call value.
        blank: zeros in the place of one value.
    """

    def __init__(self, arrange: Callable[[list[Any]], Any], blank: Any) -> None:
        self.arrange = arrange
        self.blank = blank

    def __call__(self, numbered: Sequence[tuple[int, Row]]) -> RowBatch | HookscopeError:
        """Return the batch, or why there can be none."""
        rows = [row for _, row in numbered]
        bad = tuple(i for i, row in enumerate(rows) if row.value is None)
        values = [self.blank if row.value is None else row.value for row in rows]
        first = numbered[0][0]
        span = range(first, first + len(rows))
        try:
            value = self.arrange(values)
        except HookscopeError as error:  # as a value: between processes it would lose its hint
            return error
        return RowBatch(span, value, tuple(row.told for row in rows), bad)


class _Numbered(Dataset[tuple[int, Row]]):
    def __init__(self, rows: Dataset[Row]) -> None:
        self.rows = rows

    def __getitem__(self, row: int) -> tuple[int, Row]:
        return row, self.rows[row]


def batches_of(
    rows: Dataset[Row], batches: Sequence[range], collate: Collator, workers: int, pin: bool
) -> Iterator[RowBatch]:
    """Yield the batches in order, read ahead by ``workers`` processes, two batches each.

    Raises:
        InputError: rows cannot be put together, for their shapes differ.
        HookscopeError: one of the processes has died.
    """
    forking = "fork" in multiprocessing.get_all_start_methods()
    several: dict[str, Any] = {}
    if workers and forking:
        several = {"num_workers": workers, "prefetch_factor": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(
        _Numbered(rows),
        batch_sampler=map(list, batches),
        collate_fn=collate,
        pin_memory=pin,
        **several,
    )
    reading = iter(loader)
    while True:
        try:
            with blaming_lost_readers():
                batch = next(reading, None)
        except (ConnectionError, EOFError) as error:
            raise _reader_died(error) from error
        if batch is None:
            return
        if isinstance(batch, HookscopeError):
            raise batch
        yield batch


@contextmanager
def blaming_lost_readers() -> Iterator[None]:
    """Tell of a process that reads inputs and has died, wherever in the block that shows.

    torch raises it from the handler of a signal: in the middle of whatever runs just then.
    """
    try:
        yield
    except RuntimeError as error:
        if lost_reader(error):
            raise _reader_died(error) from error
        raise


def lost_reader(error: Exception) -> bool:
    """Whether an error is torch's own word for a process that read inputs and has died."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")


def _reader_died(error: Exception) -> HookscopeError:
    return HookscopeError(
        f"A process that reads inputs has died: {cause(error)}.",
        "It may have been killed for the memory it took: give fewer --workers, or 0. With --resume"
        " the run goes on.",
    )
