"""A set of weights, read like the file of a capture: views of tensors and figures take either."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.tensor_measures import ReadProgress, cache_blocks
from hookscope.files.progress_types import NamedProgress
from hookscope.files.shell_words import cite_command
from hookscope.results.numpy_stats import summarize
from hookscope.results.records import Record, Recording
from hookscope.results.stats import Stats
from hookscope.specs.tensor_key import WEIGHT, WHOLE, Index, slice_error
from hookscope.stores.capture_file import CaptureFile
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor

PART_ELEMENTS = 1 << 22  # of a part of a tensor that are read at a time


class WeightReader(CaptureFile):
    """A set of weights with the methods of ``CaptureFile``; statistics are read on first use."""

    def __init__(self, weights: WeightSet) -> None:
        Recording.__init__(self)
        self.weights = weights
        self.path = weights.label
        self.listing = f"{cite_command('hookscope', 'show', weights.label)} lists the tensors."
        self.metadata: dict[str, Any] = {"model": {"spec": weights.label}}
        self._records = {name: self._record_of(one) for name, one in weights.tensors.items()}
        self._progress = ReadProgress(0, None)

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return self.weights.nbytes

    def show_progress(self, total: int, advance: NamedProgress) -> None:
        """Tell ``advance`` from now on what has been read of ``total`` bytes."""
        self._progress = ReadProgress(total, advance)

    def blocks(self, key: str, index: Index = WHOLE) -> Iterator[NDArray[Any]]:
        """Yield the values of a tensor, or of a part of it, in row-major order, in blocks."""
        tensor = self.weights.tensors[self.record(key).key]
        if index != WHOLE:
            return cache_blocks(self._part_blocks(key, index))
        return self._progress.watch(tensor, cache_blocks(self.weights.blocks(key)))

    def shape(self, key: str, index: Index = WHOLE) -> tuple[int, ...]:
        """Return the shape of the array that ``tensor`` returns; reads nothing."""
        shape = self.record(key).shape
        try:
            return np.broadcast_to(np.empty((), np.uint8), shape)[index].shape
        except IndexError as error:
            raise slice_error(key, shape, error) from error

    def _view(self, key: str, index: Index) -> tuple[NDArray[Any], str]:
        return self.weights.tensor(self.record(key).key, index), ""

    def _part_blocks(self, key: str, index: Index) -> Iterator[NDArray[Any]]:
        """The values of a part, as many of its rows at a time as ``PART_ELEMENTS`` hold."""
        whole = self.shape(key, index)
        if prod(whole) <= PART_ELEMENTS:
            yield self.weights.tensor(key, index).reshape(-1)
            return
        entries = full_index(index, self.record(key).shape)
        axis = next(n for n, entry in enumerate(entries) if isinstance(entry, range))
        rows = entries[axis]
        assert isinstance(rows, range)
        count = max(PART_ELEMENTS // prod(whole[1:]), 1)
        for start in range(0, len(rows), count):
            some = rows[start : start + count]
            part = some[0] if len(some) == 1 else as_slice(some)
            others = [as_slice(e) for e in entries[axis + 1 :]]
            yield from self._part_blocks(key, (*entries[:axis], part, *others))  # type: ignore[arg-type]

    def _record_of(self, tensor: WeightTensor) -> Record:
        module, _, what = tensor.name.rpartition(".")
        return Record(
            tensor.name,
            module or tensor.name,  # a row of its own in an overview
            "",
            1,
            what,
            WEIGHT,
            tensor.shape,
            tensor.dtype,
            "",
            (tensor.tied_to,) if tensor.tied_to else (),
            summary=partial(self._summarize, tensor.name),
        )

    def _summarize(self, name: str) -> Stats:
        return summarize(self.blocks(name))


def full_index(index: Index, shape: tuple[int, ...]) -> tuple[int | range, ...]:
    """Return an entry for each dimension: a number, or the numbers of a slice.

    Example:
        >>> full_index((3, ..., slice(1, None)), (8, 2, 5))
        (3, range(0, 2), range(1, 5))
    """
    at = index.index(...) if ... in index else len(index)
    rest = [slice(None)] * (len(shape) - len(index) + (... in index))
    entries: list[Any] = [*index[:at], *rest, *index[at + 1 :]]
    return tuple(range(n)[entry] for entry, n in zip(entries, shape, strict=True))


def as_slice(entry: int | slice | range) -> int | slice:
    """Return the slice that selects the numbers of a range; one that goes down to 0 has no end.

    Example:
        >>> as_slice(range(3, -1, -1)), as_slice(5)
        (slice(3, None, -1), 5)
    """
    if isinstance(entry, range):
        return slice(entry.start, entry.stop if entry.stop >= 0 else None, entry.step)
    return entry
