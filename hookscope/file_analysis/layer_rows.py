"""Rows of layers, flattened, as float64 matrices, read a few megabytes at a time, in step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.files.progress_types import Progress
from hookscope.results.dtypes import widen
from hookscope.specs.features_options import CORRELATION, COSINE, EUCLIDEAN
from hookscope.stores.features.features import Features
from hookscope.stores.features.lazy_rows import LazyRows

Matrix = NDArray[np.float64]
_BLOCK = 1 << 25  # bytes of float64 values of all layers that are read at a time
_SPARSE = 4  # rows are read one by one if fewer than one in so many are used

RowMap = Callable[[Matrix], Matrix]
_SAME = "Extract both folders from the same inputs, in the same order."
UNVERIFIED = (
    "The inputs are items of a Dataset: their numbers agree, but their contents cannot be compared."
)


def row_count(number: int) -> str:
    """Return a number of rows for a sentence."""
    return f"{number} row{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class LayerRows:
    """One layer of a features folder."""

    key: str
    rows: LazyRows

    @property
    def dims(self) -> int:  # noqa: D102 - an attribute
        return self.rows.ndim - 1

    @property
    def width(self) -> int:  # noqa: D102 - an attribute
        return int(np.prod(self.rows.shape[1:], dtype=object))

    def matrix(self, numbers: NDArray[np.intp]) -> Matrix:
        """Return some rows, in ascending order, as float64 (rows, width)."""
        first, last = int(numbers[0]), int(numbers[-1]) + 1
        if last - first > _SPARSE * len(numbers):
            bits = self.rows.bits(numbers)
        else:
            bits = self.rows.read_range(first, last)[numbers - first]
        values = widen(np.asarray(bits), self.rows.format)
        return np.asarray(values, np.float64).reshape(len(numbers), -1)


def row_counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Return what adds to the number of rows, of ``total``, that ``progress`` is told."""
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if progress:
            progress(min(done, total), total)

    return advance


def check_numbers(layer: LayerRows) -> None:
    """Check that rows are real numbers, and have some."""
    if layer.rows.dtype.kind == "c":
        raise RequestError(
            f"The rows of {layer.key} are complex numbers, which are not supported.",
            "Select other layers with --layer.",
        )
    if not layer.width:
        raise RequestError(
            f"The rows of {layer.key} have no values.", "Select other layers with --layer."
        )


@dataclass(frozen=True)
class RowStream:
    """The chosen rows of several layers, in blocks."""

    layers: Sequence[LayerRows]
    numbers: NDArray[np.intp]
    advance: Callable[[int], None] = lambda rows: None

    def __len__(self) -> int:
        return len(self.numbers)

    def blocks(self, chosen: Sequence[int]) -> Iterator[list[Matrix]]:
        """Yield blocks of rows of the layers with these numbers, in step."""
        width = sum(self.layers[i].width for i in chosen)
        for part in self.parts(_BLOCK // (8 * max(width, 1))):
            yield [self.layers[i].matrix(part) for i in chosen]
            self.advance(len(part))

    def parts(self, rows: int) -> list[NDArray[np.intp]]:
        """Return the numbers of the rows in blocks of at most ``rows``, and at least one."""
        step = max(rows, 1)
        return [self.numbers[at : at + step] for at in range(0, len(self), step)]


@dataclass(frozen=True)
class RowScan:
    """What one pass over a layer finds."""

    mean: Matrix
    bad_rows: int
    first_bad: int
    constant: bool
    short_rows: int


def scan_layers(stream: RowStream, distance: str | None = None) -> list[RowScan]:
    """Read all rows once: means, constant layers, rows that are not finite or have no distance."""
    everything = range(len(stream.layers))
    first: list[Matrix] = []
    sums: list[Matrix] = []
    bad = [0] * len(stream.layers)
    first_bad = [-1] * len(stream.layers)
    varies = [False] * len(stream.layers)
    short = [0] * len(stream.layers)
    done = 0
    for blocks in stream.blocks(everything):
        if not first:
            first = [block[0].copy() for block in blocks]
            sums = [np.zeros_like(row) for row in first]
        for i, block in enumerate(blocks):
            finite = np.isfinite(block).all(axis=1)
            if not finite.all():
                if not bad[i]:
                    first_bad[i] = int(stream.numbers[done + int(np.argmin(finite))])
                bad[i] += int(np.sum(~finite))
            with np.errstate(invalid="ignore", over="ignore"):
                gaps = block - first[i]
                sums[i] += gaps.sum(axis=0)
                varies[i] |= bool(gaps.any())
                if distance in (COSINE, CORRELATION):
                    short[i] += int(np.sum(_directed(block, distance)[1] == 0))
        done += len(blocks[0])
    return [
        RowScan(first[i] + sums[i] / max(done, 1), bad[i], first_bad[i], not varies[i], short[i])
        for i in everything
    ]


def centred_blocks(
    stream: RowStream, chosen: Sequence[int], means: Sequence[Matrix]
) -> Iterator[list[Matrix]]:
    """Yield blocks of rows minus the mean of each feature; ``means`` are those of all layers."""
    for blocks in stream.blocks(chosen):
        yield [block - means[i] for i, block in zip(chosen, blocks, strict=True)]


def gram_matrix(stream: RowStream, layer: int, prepare: RowMap, memory: int) -> Matrix:
    """Return the products of each row with each other row: float64 (rows, rows), symmetric."""
    gram = np.empty((len(stream), len(stream)))
    source = stream.layers[layer]
    parts = stream.parts(memory // (4 * 8 * source.width))
    starts = np.cumsum([0, *map(len, parts)])
    for i, part in enumerate(parts):
        left = prepare(source.matrix(part))
        stream.advance(len(part))
        for j in range(i, len(parts)):
            right = left if j == i else prepare(source.matrix(parts[j]))
            block = left @ right.T
            rows, columns = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
            gram[rows, columns] = block
            gram[columns, rows] = block.T
    return gram


def row_preparation(distance: str, mean: Matrix) -> RowMap:
    """Return what is done to rows so that their products give a distance between rows.

    For ``euclidean`` features are centred, which changes no distance and keeps digits; for
    ``cosine`` rows get length 1; for ``correlation`` rows are centred first. Rows of length 0 must
    have been left out: ``scan_layers`` counts them.
    """

    def prepare(block: Matrix) -> Matrix:
        if distance == EUCLIDEAN:
            return block - mean
        block, largest = _directed(block, distance)
        block = block / largest  # so that squares neither overflow nor vanish
        unit: Matrix = block / np.sqrt(np.sum(block**2, axis=1, keepdims=True))
        return unit

    return prepare


def _directed(block: Matrix, distance: str) -> tuple[Matrix, Matrix]:
    """Rows whose products are compared, and the largest size in each, (rows, 1); 0 for none."""
    if distance == COSINE:
        return block, np.abs(block).max(axis=1, keepdims=True)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(block).max(axis=1, keepdims=True)
    block = block - block.mean(axis=1, keepdims=True)
    largest = np.abs(block).max(axis=1, keepdims=True)
    return block, np.where(largest <= rounding, 0.0, largest)  # 0: entries that are all equal


def usable_rows(a: Features, b: Features | None, every: int) -> tuple[NDArray[np.intp], list[str]]:
    """Return the rows that no folder has skipped, and notes; both must have the same inputs."""
    notes = [] if b is None else check_same_inputs(a, b)
    skipped = {*a.inputs.skipped, *(() if b is None else b.inputs.skipped)}
    numbers = np.arange(0, a.rows, every)
    if skipped:
        numbers = numbers[~np.isin(numbers, list(skipped))]
        notes.append(f"Left out because their input was skipped: {row_count(len(skipped))}.")
    return numbers, notes


def check_same_inputs(a: Features, b: Features) -> list[str]:
    """Check that the rows of two folders are of the same inputs; return notes on what is unknown.

    Files are the same if their SHA-256 is; a file that was moved is the same file. Items of a
    Dataset are the same if their numbers are, which a note says. Inputs that were skipped in either
    folder are not compared.
    """
    if a.rows != b.rows:
        raise RequestError(
            f"{a.folder} has {a.rows} rows and {b.folder} has {b.rows}: they are of different"
            " inputs.",
            _SAME,
        )
    unverified = False
    for row, (one, other) in enumerate(zip(a.inputs, b.inputs, strict=True)):
        if "skipped" in one or "skipped" in other:
            continue
        name = "sha256" if "sha256" in one and "sha256" in other else "item"
        if one.get(name) is None or one.get(name) != other.get(name):
            raise RequestError(
                f"Row {row} of {a.folder} is {_named(one)}, and of {b.folder} it is"
                f" {_named(other)}: they are different inputs.",
                _SAME,
            )
        unverified |= name == "item"
    return [UNVERIFIED] if unverified else []


def _named(entry: dict[str, Any]) -> str:
    if "path" in entry:
        digest = str(entry.get("sha256", ""))[:8]
        return f"{entry['path']} (SHA-256 {digest}...)"
    return f"item {entry.get('item')} of a Dataset"
