"""Rows of a run's table in files: each holds consecutive rows, and is written as a whole.

A file is a safetensors file named ``TABLE-FIRST-LAST.safetensors`` after the numbers of its rows,
with these tensors, for R rows of C series:

- ``step``: int64 [R], the step of each row, from 0, ascending;
- ``time``: float64 [R], seconds since the run began;
- ``series``: int32 [C], numbers of lines of ``series.jsonl``, from 0;
- ``values``: float32 [R, C];
- ``present``: uint8 [R, ceil(C / 8)], the bits of ``numpy.packbits``: 0 where a series has no value
  in a row. It is left out if every series has one in every row.

While a run is being written, neighbouring files are merged into one. The merged file appears before
the others are removed: a file whose rows are all in another one does not count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hookscope.errors import ResultsFileError, cause
from hookscope.files.atomic_files import replacement_file
from hookscope.files.own_folder import check_own

_NAME = re.compile(r"(?P<table>[a-z]+)-(?P<first>\d{9})-(?P<last>\d{9})\.safetensors")
_DTYPES = {"step": np.int64, "time": np.float64, "series": np.int32, "values": np.float32}
_ATTEMPTS = 20  # to read files that are being merged


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a table."""

    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    series: NDArray[np.int32]
    values: NDArray[np.float32]
    present: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.steps)

    @classmethod
    def of_rows(
        cls,
        steps: Sequence[int],
        times: Sequence[float],
        series: Sequence[int],
        values: Sequence[Sequence[float]],
    ) -> RowBlock:
        """Return rows that have values of the same series; what float32 cannot hold is infinite."""
        with np.errstate(over="ignore"):
            table = np.array(values, np.float64).astype(np.float32)
        return cls(
            np.array(steps, np.int64),
            np.array(times, np.float64),
            np.array(series, np.int32),
            table.reshape(len(steps), len(series)),
            np.ones((len(steps), len(series)), np.bool_),
        )

    def part(self, rows: slice, columns: slice | list[int] = slice(None)) -> RowBlock:
        """Return some rows, with some of the series."""
        return RowBlock(
            self.steps[rows],
            self.times[rows],
            self.series[columns],
            self.values[rows][:, columns],
            self.present[rows][:, columns],
        )


def concatenate(blocks: Sequence[RowBlock]) -> RowBlock:
    """Return the rows of several blocks, with the series of all of them, in ascending order."""
    numbers = [block.series for block in blocks]
    series = np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.int32)
    rows = sum(map(len, blocks))
    values = np.zeros((rows, len(series)), np.float32)
    present = np.zeros((rows, len(series)), np.bool_)
    start = 0
    for block in blocks:
        columns = np.searchsorted(series, block.series)
        values[start : start + len(block), columns] = block.values
        present[start : start + len(block), columns] = block.present
        start += len(block)
    return RowBlock(
        np.concatenate([np.empty(0, np.int64), *(block.steps for block in blocks)]),
        np.concatenate([np.empty(0, np.float64), *(block.times for block in blocks)]),
        series,
        values,
        present,
    )


@dataclass(frozen=True)
class BlockFile:
    """A file of rows ``first`` to ``last``, both included."""

    path: Path
    table: str
    first: int
    last: int

    @classmethod
    def named(cls, folder: Path, table: str, first: int, last: int) -> BlockFile:
        """Return the file of these rows; it need not exist."""
        return cls(folder / f"{table}-{first:09}-{last:09}.safetensors", table, first, last)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last - self.first + 1

    def write(self, block: RowBlock) -> None:
        """Write the file as a whole."""
        tensors: dict[str, NDArray[Any]] = {
            "step": block.steps,
            "time": block.times,
            "series": block.series,
            "values": block.values,
        }
        if not block.present.all():
            tensors["present"] = np.packbits(block.present, axis=1)
        with replacement_file(self.path, "Free some space, or choose another folder.") as scratch:
            save_file(tensors, scratch, {"hookscope": f'{{"table": "{self.table}"}}'})

    def read(self) -> RowBlock:
        """Read the file."""
        try:
            tensors = load_file(check_own(self.path, self.path.parent))
            for name, dtype in _DTYPES.items():
                if tensors[name].dtype != dtype:
                    raise ValueError(f"{name} has the dtype {tensors[name].dtype}")
            shape = self.rows, len(tensors["series"])
            present = np.ones(shape, np.bool_)
            if "present" in tensors:
                bits = np.unpackbits(tensors["present"], axis=1, count=shape[1])
                present = bits.astype(np.bool_)
            steps, times, series, values = (tensors[name] for name in _DTYPES)
            block = RowBlock(steps, times, series, values, present)
            lengths = (self.rows,)
            if not (
                block.steps.shape == block.times.shape == lengths
                and block.series.shape == shape[1:]
                and block.values.shape == present.shape == shape
            ):
                raise ValueError("its tensors do not have the shapes that its name says")
            if len(block.series) and block.series.min() < 0:
                raise ValueError("the number of a series is negative")
            if (np.diff(block.steps) < 0).any():
                raise ValueError("its steps are not in order")
            return block
        except FileNotFoundError:
            raise
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ResultsFileError(
                f"{self.path} is damaged: {cause(error)}.", "Remove it to read the other rows."
            ) from error


def block_files(folder: str | os.PathLike[str], table: str) -> list[BlockFile]:
    """Return the files of a table in the order of their rows, without those in a merged one."""
    folder = Path(folder)
    matches = [match for name in os.listdir(folder) if (match := _NAME.fullmatch(name))]
    files = [
        BlockFile(folder / match[0], table, int(match["first"]), int(match["last"]))
        for match in matches
        if match["table"] == table
    ]
    files.sort(key=lambda file: (file.first, -file.last))
    kept: list[BlockFile] = []
    for file in files:
        if not kept or file.last > kept[-1].last:
            kept.append(file)
    return kept


def read_blocks(folder: str | os.PathLike[str], table: str) -> Iterator[RowBlock]:
    """Yield the rows of a table file by file, also while another process writes and merges them."""
    row = 0  # the first one that was not yielded
    for _ in range(_ATTEMPTS):
        try:
            for file in block_files(folder, table):
                if file.last < row:
                    continue
                block = file.read()
                yield block.part(slice(max(row - file.first, 0), None))
                row = file.last + 1
            return
        except FileNotFoundError:  # merged into another file, which is listed now
            continue
        except OSError as error:
            raise ResultsFileError(f"{folder} cannot be read: {cause(error)}.") from error
    raise ResultsFileError(f"The files of {folder} keep changing.", "Try again.")
