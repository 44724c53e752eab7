"""How image files become images: exactly, or quicker where they are far larger than needed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from PIL import Image
from torch.utils.data import DataLoader, Dataset

from hookscope.errors import HookscopeError, cause
from hookscope.inputs import image_decoder
from hookscope.inputs.input_reader import sha256
from hookscope.sources.loaded import Recipe
from hookscope.specs.choices import DECODINGS
from hookscope.specs.input_list import InputEntry
from hookscope.tensors.nested import map_tensors

Decode = Callable[[bytes, str, int], Image.Image]


def make_decoder(way: str, side: int) -> Decode:
    """Return what makes an image of the bytes of a file.

    Args:
        way: ``exact``, the pixels that a plain capture gives; or ``fast``, which lets libjpeg scale
            a JPEG down by 2, 4 or 8 while it decodes, to no less than twice ``side``.
        side: pixels of the longer side of what the model is given.
    """
    return image_decoder.decode_image if way == DECODINGS[0] else partial(_fast, side)


def _fast(side: int, data: bytes, word: str, channels: int) -> Image.Image:
    # The factor of two leaves the resizing that follows enough to average over.
    return image_decoder.decode_image(data, word, channels, at_least=2 * side)


TableEntry = dict[str, Any]  # a line of the table of inputs, without the row's number


@dataclass(frozen=True)
class Row:
    """One input as a tensor, or None where it cannot be used; ``told`` then says why."""

    value: Any
    told: TableEntry


@dataclass(frozen=True)
class RowBatch:
    """Rows put together to a call value; ``bad`` are the places that hold a blank."""

    rows: range
    value: Any
    told: tuple[TableEntry, ...]
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
        self, entries: Sequence[InputEntry], recipe: Recipe, channels: int, decode: Decode
    ) -> None:
        self.entries = entries
        self.recipe = recipe
        self.channels = channels
        self.decode = decode

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, row: int) -> Row:
        entry = self.entries[row]
        told: TableEntry = {"path": entry.name}
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


def load_batches(
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
            with report_dead_workers():
                batch = next(reading, None)
        except (ConnectionError, EOFError) as error:
            raise _reader_died(error) from error
        if batch is None:
            return
        if isinstance(batch, HookscopeError):
            raise batch
        yield batch


@contextmanager
def report_dead_workers() -> Iterator[None]:
    """Tell of a process that reads inputs and has died, wherever in the block that shows.

    torch raises it from the handler of a signal: in the middle of whatever runs just then.
    """
    try:
        yield
    except RuntimeError as error:
        if is_dead_worker(error):
            raise _reader_died(error) from error
        raise


def is_dead_worker(error: Exception) -> bool:
    """Whether an error is torch's own word for a process that read inputs and has died."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")


def _reader_died(error: Exception) -> HookscopeError:
    return HookscopeError(
        f"A process that reads inputs has died: {cause(error)}.",
        "It may have been killed for the memory it took: give fewer --workers, or 0. With --resume"
        " the run goes on.",
    )
