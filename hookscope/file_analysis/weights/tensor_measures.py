"""Measures of the tensors of a set of weights, read once each, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import WeightsFileError
from hookscope.file_analysis.weights.channel_measures import (
    ChannelMeasures,
    ChannelSums,
    has_channels,
    output_dimension,
)
from hookscope.files.progress import NamedProgress
from hookscope.results.numpy_stats import summarize
from hookscope.results.stats import BLOCK, Stats
from hookscope.specs.weight_checks import DEFAULT_WEIGHT_THRESHOLDS
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor

UNIT = 1_000_000  # bytes of a step of progress

_WIDER = ("float32", "float64", "bfloat16")  # than float16


@dataclass(frozen=True)
class TensorMeasures:
    """What is known of the values of one tensor."""

    tensor: WeightTensor
    stats: Stats | None
    channels: ChannelMeasures | None = None
    small: int = 0
    unread: str = ""
    source: str = ""

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.tensor.name

    @property
    def floats(self) -> bool:
        """Whether the dtype has numbers beyond those of float16."""
        return self.tensor.dtype in _WIDER


class ReadProgress:
    """Tells how many megabytes of a set have been read."""

    def __init__(self, total: int, advance: NamedProgress | None) -> None:
        self._total, self._advance = total, advance
        self._done = 0

    def watch(self, tensor: WeightTensor, pieces: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Yield the pieces of a tensor as they are."""
        start, read = self._done, 0
        for piece in pieces:
            yield piece
            read += piece.size
            self._tell(start + tensor.nbytes * read // tensor.numel, tensor.name)
        self._done = start + tensor.nbytes

    def _tell(self, done: int, name: str) -> None:
        if self._advance is not None:
            self._advance(done // UNIT, max(self._total // UNIT, 1), name)


def measure_weights(
    weights: WeightSet, names: Iterable[str] | None = None, advance: NamedProgress | None = None
) -> Iterator[TensorMeasures]:
    """Yield the measures of each tensor; that takes the memory of a block and of some channels.

    A tensor that is tied to one before has its measures, and is not read again.
    """
    chosen = [weights.tensors[name] for name in (weights.tensors if names is None else names)]
    progress = ReadProgress(sum(tensor.nbytes for tensor in chosen), advance)
    known: dict[str, TensorMeasures] = {}
    for tensor in chosen:
        if tensor.tied_to in known:
            first = known[tensor.tied_to]
            measures = TensorMeasures(
                tensor, first.stats, first.channels, first.small, first.unread, first.source
            )
        else:
            measures = _measure(weights, tensor, progress)
        known[tensor.name] = measures
        yield measures


def _measure(weights: WeightSet, tensor: WeightTensor, progress: ReadProgress) -> TensorMeasures:
    try:
        blocks = weights.blocks(tensor.name)  # reads nothing yet: an error is of the dtype
    except WeightsFileError as error:
        return TensorMeasures(tensor, None, unread=error.message, source=weights.label)
    pieces = progress.watch(tensor, cache_blocks(blocks))
    channels = None
    dimension, certain = output_dimension(tensor, weights.tensors)
    if has_channels(tensor, dimension):
        channels = ChannelSums(tensor.shape, dimension, certain)
        pieces = channels.watch(pieces)
    small = _SmallEntries()
    if tensor.dtype in _WIDER:
        pieces = small.watch(pieces)
    stats = summarize(pieces)
    by_channel = channels.measures() if channels else None
    return TensorMeasures(tensor, stats, by_channel, small.count, source=weights.label)


def cache_blocks(pieces: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the same entries in blocks that fit into a processor's cache with their float64."""
    for piece in pieces:
        for start in range(0, piece.size, BLOCK):
            yield piece[start : start + BLOCK]


class _SmallEntries:
    """Counts entries that float16 would round to zero or to its least number."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, pieces: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        least = DEFAULT_WEIGHT_THRESHOLDS.float16_least
        for piece in pieces:
            below = np.abs(piece) < least
            self.count += int(np.count_nonzero(below)) - int(np.count_nonzero(piece == 0))
            yield piece
