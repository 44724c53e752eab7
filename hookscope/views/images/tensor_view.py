"""One tensor of a file, read block by block: its statistics, a histogram, the largest entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.weight_reader import WeightReader, full_index
from hookscope.files.progress_types import NamedProgress
from hookscope.results.numpy_stats import magnitude, summarize
from hookscope.results.records import Record
from hookscope.results.stats import Stats
from hookscope.results.tokens import padded_dims, token_labels
from hookscope.specs.tensor_key import WHOLE, Index, choose_keys, modules_above, slice_text
from hookscope.stores.capture_file import CaptureFile
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.views.images.colors import ColorScale

BINS = 16
LARGEST_COUNT = 8

_PASSES = 3  # over a tensor with its values: statistics, the largest entries, the histogram


@dataclass(frozen=True)
class Bin:
    """How many entries are from ``low`` to below ``high``; the last bin includes ``high``."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class TensorEntry:
    """One entry: its index in the whole tensor, and its value (the magnitude if complex).

    ``tokens`` has the text of the token at each dimension that is a sequence of tokens.
    """

    index: tuple[int, ...]
    value: float
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorSummary:
    """The statistics of one tensor, or of a part of it."""

    view = "stored_tensors"

    record: Record
    part: str
    shape: tuple[int, ...]
    stats: Stats


@dataclass(frozen=True)
class TensorView(TensorSummary):
    """One tensor, or a part of it, with its values."""

    histogram: tuple[Bin, ...]
    largest: tuple[TensorEntry, ...]
    first_nan: tuple[int, ...] | None
    first_inf: tuple[int, ...] | None
    padding: int = 0


def summarize_tensor(capture: CaptureFile, key: str, index: Index = WHOLE) -> TensorSummary:
    """Return the statistics of a tensor, or of a part of it."""
    record, shape = capture.record(key), capture.shape(key, index)
    stats = record.stats if index == WHOLE else summarize(capture.blocks(key, index))
    return TensorSummary(record, slice_text(index), shape, stats)


def read_tensor_view(capture: CaptureFile, key: str, index: Index = WHOLE) -> TensorView:
    """Read what a tensor holds."""
    summary = summarize_tensor(capture, key, index)
    stats, shape = summary.stats, summary.shape
    size = capture.shape(key)

    def full_index(flat: int | None) -> tuple[int, ...] | None:
        if flat is None:
            return None
        return to_full_index(tuple(int(i) for i in np.unravel_index(flat, shape)), index, size)

    entries = largest(capture.blocks(key, index))
    nan = inf = None
    if stats.nan or stats.inf:
        nan, inf = first_nonfinite(capture.blocks(key, index))
    return TensorView(
        **vars(summary),
        histogram=histogram(capture.blocks(key, index), stats),
        largest=tuple(_entry(capture, key, full_index(flat) or (), v) for flat, v in entries),
        first_nan=full_index(nan),
        first_inf=full_index(inf),
        padding=_padding(capture, summary.record) if index == WHOLE else 0,
    )


def _padding(capture: CaptureFile, record: Record) -> int:
    """The positions of padding that the recorded statistics leave out."""
    prompts = list(padded_dims(record, capture.metadata).values())[:1]
    return sum(len(row) for prompt in prompts for row in prompt.padding)


def _entry(capture: CaptureFile, key: str, index: tuple[int, ...], value: float) -> TensorEntry:
    return TensorEntry(index, value, token_labels(capture.record(key), capture.metadata, index))


def histogram(pieces: Iterable[NDArray[Any]], stats: Stats, bins: int = BINS) -> tuple[Bin, ...]:
    """Count the finite entries of ``pieces`` in bins of equal width, from minimum to maximum."""
    low, high = stats.min, stats.max
    if low is None or high is None:
        return ()
    integers = isinstance(low, int) and high - low < bins
    bins = int(high - low) + 1 if integers else 1 if low == high else bins
    scale = ColorScale(low, high)
    counts = np.zeros(bins, np.int64)
    for piece in pieces:
        position = scale.position(piece)
        position = position[~np.isnan(position)]
        bin = np.rint(position * (bins - 1)) if integers else np.floor(position * bins)
        counts += np.bincount(np.minimum(bin, bins - 1).astype(np.intp), minlength=bins)
    if integers:
        return tuple(Bin(int(low) + i, int(low) + i, int(n)) for i, n in enumerate(counts))
    ends = [low * (1 - i / bins) + high * (i / bins) for i in range(bins + 1)]
    return tuple(Bin(ends[i], ends[i + 1], int(n)) for i, n in enumerate(counts))


def largest(pieces: Iterable[NDArray[Any]], count: int = LARGEST_COUNT) -> list[tuple[int, float]]:
    """Return the finite entries of largest absolute value, without zeros."""
    best: list[tuple[float, int, float]] = []
    start = 0
    for piece in pieces:
        values = magnitude(piece)
        sizes = np.abs(values.astype(np.float64))
        # With ``count`` entries found, only larger ones than the smallest of them count.
        least = -best[-1][0] if len(best) == count else 0.0
        at = np.flatnonzero((sizes > least) & np.isfinite(sizes))
        if at.size > count:
            bound = np.partition(sizes[at], -count)[-count]
            at = np.concatenate([at[sizes[at] > bound], at[sizes[at] == bound][:count]])
        best += [(-float(sizes[i]), start + int(i), values[i].item()) for i in at]
        best = sorted(best, key=lambda entry: entry[:2])[:count]
        start += piece.size
    return [(position, value) for _, position, value in best]


def first_nonfinite(pieces: Iterable[NDArray[Any]]) -> tuple[int | None, int | None]:
    """Return the positions of the first NaN and of the first infinity; None if there is none."""
    first: list[int | None] = [None, None]
    start = 0
    for piece in pieces:
        for i, test in enumerate((np.isnan, np.isinf)):
            if first[i] is None and (positions := np.flatnonzero(test(piece))).size:
                first[i] = start + int(positions[0])
        if None not in first:
            break
        start += piece.size
    return first[0], first[1]


def to_full_index(
    part_index: tuple[int, ...], index: Index, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the index in the whole tensor of an entry of a part.

    >>> to_full_index((1, 2), (3, slice(4, None)), (8, 8, 8))
    (3, 5, 2)
    """
    left = iter(part_index)
    entries = full_index(index, shape)
    return tuple(entry[next(left)] if isinstance(entry, range) else entry for entry in entries)


@dataclass(frozen=True)
class WeightChoice:
    """The tensors of a set that somebody wants to see."""

    weights: WeightSet
    parts: tuple[tuple[str, Index], ...]
    is_table: bool

    def read(self, progress: NamedProgress | None = None) -> list[TensorSummary]:
        """Return what the tensors hold: in a table a ``TensorSummary``, else a ``TensorView``."""
        reader = WeightReader(self.weights)
        if progress is not None:
            sizes = (self.weights.tensors[name].nbytes for name, i in self.parts if i == WHOLE)
            reader.show_progress(sum(sizes) * (1 if self.is_table else _PASSES), progress)
        view = summarize_tensor if self.is_table else read_tensor_view
        return [view(reader, name, index) for name, index in self.parts]


def choose_weights(weights: WeightSet, keys: Sequence[str]) -> WeightChoice:
    """Return the tensors that keys select; those of a module, or of a glob, make a table.

    >>> from hookscope.stores.weights.open_weights import open_weights
    >>> choice = choose_weights(open_weights("sample_models/digits.safetensors"), ["fc"])
    >>> [name for name, index in choice.parts], choice.is_table
    (['fc.bias', 'fc.weight'], True)
    """
    names = list(weights.tensors)
    parts = choose_keys(keys, names, weights.label, holders=modules_above)
    return WeightChoice(weights, tuple(parts), is_table=len(parts) > len(keys))
