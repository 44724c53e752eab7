"""The numbers of a run, written in parts: a table in CSV or Parquet, or scalars for TensorBoard."""

from __future__ import annotations

import csv
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hookscope.escapes import encodable
from hookscope.files.atomic_files import replacement_file
from hookscope.files.optional_packages import optional_package
from hookscope.files.progress_types import Progress
from hookscope.results.exports import ExportedRun
from hookscope.stores.runs.row_blocks import RowBlock
from hookscope.stores.runs.series import TABLES, Series, choose_series
from hookscope.stores.runs.training_run import TrainingRun

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), its bits reversed
_MASK = 0xA282EAD8

COLUMNS = ("table", "step", "seconds", "model", "key", "measure", "value")
MAX_VALUES = 1 << 18  # that are converted at a time


def write_version(file: BinaryIO, wall_time: float) -> None:
    """Write the first event of a file."""
    _write_record(file, _double(1, wall_time) + _bytes(3, b"brain.Event:2"))


def write_scalars(
    file: BinaryIO, wall_time: float, step: int, scalars: Iterable[tuple[bytes, float]]
) -> None:
    """Write the scalars of one step, each with its tag in UTF-8, as one event."""
    values = b"".join(
        _bytes(1, _bytes(1, tag) + b"\x15" + struct.pack("<f", value)) for tag, value in scalars
    )
    _write_record(file, _double(1, wall_time) + b"\x10" + _varint(step) + _bytes(5, values))


def _write_record(file: BinaryIO, data: bytes) -> None:
    length = struct.pack("<Q", len(data))
    file.write(length + _masked_crc(length) + data + _masked_crc(data))


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + _MASK) & 0xFFFFFFFF)


@dataclass(frozen=True)
class RunPart:
    """Some rows of a table, with the selected series only."""

    table: str
    block: RowBlock
    names: list[Series]


class CountedParts:
    """Counts what passes: ``series`` and the number of ``values``."""

    def __init__(self) -> None:
        self.series: set[Series] = set()
        self.values = 0

    def of(self, parts: Iterable[RunPart]) -> Iterator[RunPart]:
        """Yield parts, and count them."""
        for part in parts:
            self.values += int(part.block.present.sum())
            self.series.update(part.names)
            yield part


def export_run(
    run: TrainingRun, output: Path, layers: Sequence[str], progress: Progress | None = None
) -> ExportedRun:
    """Write the numbers of a run as ``.csv``, ``.parquet``, or into a folder for TensorBoard."""
    chosen = set(choose_series(layers, run.names, run.folder))
    counted = CountedParts()
    path, write = _writer(run, output)
    with replacement_file(path, "Choose another location, or fewer layers.") as scratch:
        write(scratch, counted.of(_parts(run, chosen, progress)))
        size = scratch.stat().st_size
    return ExportedRun(path, size, len(counted.series), counted.values)


def _writer(
    run: TrainingRun, output: Path
) -> tuple[Path, Callable[[Path, Iterator[RunPart]], None]]:
    suffix = output.suffix.lower()
    if suffix == ".csv":
        return output, _write_csv
    if suffix == ".parquet":
        return output, _write_parquet
    started = datetime.fromisoformat(run.info["started"]).timestamp()
    # TensorBoard takes files whose names contain "tfevents".
    path = output / f"events.out.tfevents.{int(started)}.hookscope"
    return path, lambda scratch, parts: _write_events(scratch, parts, started)


def _parts(run: TrainingRun, chosen: set[Series], progress: Progress | None) -> Iterator[RunPart]:
    advance = rows_done(run, progress)
    for table in TABLES:
        yield from parts_of(run, table, chosen, advance)


def rows_done(run: TrainingRun, progress: Progress | None) -> Callable[[int], None]:
    """Return what is called with the number of rows of each block that was read."""
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if progress:
            progress(done, max(done, run.info["steps"]))

    return advance


def parts_of(
    run: TrainingRun, table: str, chosen: Container[Series], advance: Callable[[int], None]
) -> Iterator[RunPart]:
    """Yield the rows of a table, with the chosen series, ``MAX_VALUES`` values or a row at once."""
    for block in run.blocks(table):
        columns = [n for n, number in enumerate(block.series) if run.names[number] in chosen]
        names = [run.names[block.series[n]] for n in columns]
        step = max(MAX_VALUES // max(len(names), 1), 1)
        for first in range(0, len(block) if names else 0, step):
            yield RunPart(table, block.part(slice(first, first + step), columns), names)
        advance(len(block))


def _write_csv(path: Path, parts: Iterator[RunPart]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for part in parts:
            for row in range(len(part.block)):
                step, seconds = int(part.block.steps[row]), float(part.block.times[row])
                # As text, a float32 has as many digits as tell it from its neighbours.
                texts = part.block.values[row].astype(str)
                writer.writerows(
                    (part.table, step, seconds, *name, text)
                    for name, text, present in zip(
                        part.names, texts, part.block.present[row], strict=True
                    )
                    if present
                )


def _write_parquet(path: Path, parts: Iterator[RunPart]) -> None:
    with optional_package("pyarrow", "parquet", "Writing Parquet"):
        import pyarrow as arrow
        from pyarrow import parquet
    text = arrow.dictionary(arrow.int32(), arrow.string())
    types = (text, arrow.int64(), arrow.float64(), text, text, text, arrow.float32())
    schema = arrow.schema(list(zip(COLUMNS, types, strict=True)))

    def texts(values: Sequence[str], numbers: NDArray[np.int32]) -> Any:
        # pyarrow ends a dictionary that has a value twice with bytes of uninitialised memory.
        places = {value: place for place, value in enumerate(dict.fromkeys(values))}
        indices = np.array([places[value] for value in values], np.int32)[numbers]
        return arrow.DictionaryArray.from_arrays(arrow.array(indices), arrow.array(list(places)))

    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            rows, columns = (numbers.astype(np.int32) for numbers in part.block.present.nonzero())
            arrays = [
                texts([part.table], np.zeros(len(rows), np.int32)),
                arrow.array(part.block.steps[rows]),
                arrow.array(part.block.times[rows]),
                *(texts([name[n] for name in part.names], columns) for n in range(3)),
                arrow.array(part.block.values[rows, columns]),
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def scalar_tag(series: Series) -> str:
    """Return the tag of a series in TensorBoard, which groups charts by what is before the slash.

    >>> scalar_tag(Series("Net", "layer1.0/weight.grad", "norm"))
    'weight.grad.norm/Net/layer1.0'
    """
    parts = (f"{series.what}.{series.measure}", series.model, series.module)
    return "/".join(part for part in parts if part)


def _write_events(path: Path, parts: Iterator[RunPart], started: float) -> None:
    with path.open("wb") as file:
        write_version(file, started)
        for part in parts:
            tags = [encodable(scalar_tag(name)).encode() for name in part.names]
            for row in range(len(part.block)):
                present = part.block.present[row].nonzero()[0]
                values = part.block.values[row]
                write_scalars(
                    file,
                    started + float(part.block.times[row]),
                    int(part.block.steps[row]),
                    ((tags[n], float(values[n])) for n in present),
                )
