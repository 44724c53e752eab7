"""Measures of the tensors of a set of weights, read once each, block by block."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import WeightsFileError
from hookscope.files.progress_types import NamedProgress
from hookscope.results.numpy_stats import summarize
from hookscope.results.stats import BLOCK, Stats
from hookscope.specs.checks import DEFAULT_WEIGHT_THRESHOLDS
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor

# The names that torch's modules, recurrent ones, weight and spectral normalization give.
_WEIGHT = re.compile(r"(.*_)?weight((_(?:ih|hh)_l\d+(?:_reverse)?)|_orig|_v)?")
# int8 is a quantised weight; other integers are packed bits, tables or masks.
_WITHOUT_CHANNELS = re.compile(r"bool|complex|u?int(?!8)|uint8")
_NORMAL = 0.6745  # the third quartile of the standard normal distribution
LIMITS = DEFAULT_WEIGHT_THRESHOLDS
MAX_CHANNELS = 1 << 20  # of a tensor that is measured by channel; their measures are in memory

UNIT = 1_000_000  # bytes of a step of progress
_WIDER = ("float32", "float64", "bfloat16")  # than float16


@dataclass(frozen=True)
class Outliers:
    """Channels whose norm is far from the median, the most unusual first."""

    channels: NDArray[np.intp]
    scores: NDArray[np.float64]
    norm: float
    median: float


@dataclass(frozen=True)
class ChannelMeasures:
    """Measures of the channels of one tensor."""

    count: int
    length: int
    dimension: int
    certain: bool
    zero: NDArray[np.intp]
    constant: NDArray[np.intp]
    outliers: Outliers | None


def output_dimension(tensor: WeightTensor, tensors: Mapping[str, WeightTensor]) -> tuple[int, bool]:
    """Return the dimension of the output channels, 0 if not known, and whether a bias tells it."""
    module, dot, own = tensor.name.rpartition(".")
    name = _WEIGHT.fullmatch(own)
    bias = tensors.get(f"{module}{dot}{name[1] or ''}bias{name[3] or ''}") if name else None
    if bias is None or len(bias.shape) != 1 or len(tensor.shape) < 2:
        return 0, False
    fits = [n for n in (0, 1) if bias.shape[0] == tensor.shape[n]]
    return (fits[0], True) if len(fits) == 1 else (0, False)


def has_channels(tensor: WeightTensor, dimension: int = 0) -> bool:
    """Whether a tensor is a weight with channels, by its name: masks may have constant rows too."""
    if len(tensor.shape) < 2 or not 1 < tensor.shape[dimension] <= MAX_CHANNELS:
        return False
    if _WITHOUT_CHANNELS.match(tensor.dtype) or not tensor.numel:
        return False
    return _WEIGHT.fullmatch(tensor.name.rpartition(".")[2]) is not None


class ChannelSums:
    """Measures the channels of a tensor while its blocks pass by."""

    def __init__(self, shape: tuple[int, ...], dimension: int = 0, certain: bool = False) -> None:
        count = shape[dimension]
        self._of = dimension, certain
        self._length = prod(shape) // count
        self._run = prod(shape[dimension + 1 :])  # adjacent entries of one channel
        self._at = 0
        self._squares = np.zeros(count)
        self._low = np.full(count, np.inf)
        self._high = np.full(count, -np.inf)

    def watch(self, pieces: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Yield the pieces of the tensor as they are: one dimension each, in row-major order."""
        for piece in pieces:
            self._add(piece)
            yield piece

    def measures(self) -> ChannelMeasures:
        """Return the measures of a tensor whose pieces have all passed."""
        equal = self._low == self._high  # false for NaN
        zero = equal & (self._low == 0)
        return ChannelMeasures(
            len(equal),
            self._length,
            *self._of,
            np.flatnonzero(zero),
            np.flatnonzero(equal & ~zero),
            find_outliers(self.norms),
        )

    @property
    def norms(self) -> NDArray[np.float64]:
        """The Euclidean norm of each channel; not finite if the channel has such an entry."""
        return np.sqrt(self._squares)

    def _add(self, piece: NDArray[Any]) -> None:
        first, last = self._at // self._run, (self._at + piece.size - 1) // self._run
        starts = np.maximum(np.arange(first, last + 1) * self._run - self._at, 0)
        self._at += piece.size
        wide = piece.astype(np.float64)
        first %= len(self._low)
        _combine(np.minimum, self._low, np.minimum.reduceat(wide, starts), first)
        _combine(np.maximum, self._high, np.maximum.reduceat(wide, starts), first)
        with np.errstate(over="ignore", under="ignore"):
            np.square(wide, out=wide)
            _combine(np.add, self._squares, np.add.reduceat(wide, starts), first)


def _combine(
    ufunc: np.ufunc, totals: NDArray[np.float64], values: NDArray[np.float64], first: int
) -> None:
    """Combine values of successive channels, from ``first`` on and around, with the totals."""
    count = len(totals)
    head = min(count - first, len(values))
    whole = (len(values) - head) // count * count
    totals[first : first + head] = ufunc(totals[first : first + head], values[:head])
    if whole:
        rows = values[head : head + whole].reshape(-1, count)
        totals[:] = ufunc(totals, ufunc.reduce(rows, axis=0))
    tail = values[head + whole :]
    totals[: len(tail)] = ufunc(totals[: len(tail)], tail)


def find_outliers(norms: NDArray[np.float64]) -> Outliers | None:
    """Return channels of unusual norm by the score of ``WeightThresholds``; None without any."""
    kept = np.flatnonzero(np.isfinite(norms) & (norms > 0))
    if len(kept) < LIMITS.least_channels:
        return None
    judged = norms[kept]
    median = float(np.median(judged))
    distances = np.abs(judged - median)
    spread = float(np.median(distances))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scores = _NORMAL * distances / spread
        ratios = np.maximum(judged / median, median / judged)
    beyond = np.flatnonzero((scores > LIMITS.outlier) & (ratios > LIMITS.outlier_ratio))
    if not len(beyond):
        return None
    # Where more than half of the norms are equal, every score is infinite.
    beyond = beyond[np.lexsort((-ratios[beyond], -scores[beyond]))]
    return Outliers(kept[beyond], scores[beyond], float(judged[beyond[0]]), median)


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
    """Yield the measures of each tensor; one that is tied to one before has its measures."""
    chosen = [weights.tensors[name] for name in (weights.tensors if names is None else names)]
    progress = ReadProgress(sum(tensor.nbytes for tensor in chosen), advance)
    known: dict[str, TensorMeasures] = {}
    for tensor in chosen:
        if tensor.tied_to in known:
            measures = replace(known[tensor.tied_to], tensor=tensor)
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
