"""What is kept of a batch on its way to the CPU, while the device goes on with the next one.

From CUDA it goes into pinned memory on a stream of its own, and nobody may look at it before the
event behind the copy has happened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol

import torch
from safetensors.torch import load, save
from torch import Tensor

from hookscope.errors import LayerError
from hookscope.extraction.axes import infer_axes
from hookscope.extraction.channel_statistics import HISTOGRAM_EDGES, QUANTILES, DatasetStatistics
from hookscope.extraction.principal_components import read_components
from hookscope.extraction.reducer import Reducer, make_reducer
from hookscope.extraction.shape_probe import RecordColumn
from hookscope.extraction.shard_writer import (
    SAFETENSORS_DTYPES,
    ShardFile,
    ShardWriter,
    StoredColumn,
    publish_file,
)
from hookscope.extraction.sharding_plan import Shard
from hookscope.extraction.storage_cast import StorageCast
from hookscope.files import strict_json
from hookscope.hooks.capture import Capture
from hookscope.results.capture_file import SCHEMA
from hookscope.results.features.folder import STATISTICS, STATISTICS_ONLY, slice_key
from hookscope.results.features.location import Location
from hookscope.specs.output_path import MARK
from hookscope.specs.reduction import HISTOGRAM, PCA, Reduction, StorageOptions
from hookscope.tensors import save as store


@dataclass(frozen=True)
class HostCopy:
    """Values that are on the CPU, or will be once ``events`` have happened."""

    values: Any
    events: tuple[Any, ...] = ()

    def wait(self) -> Any:
        """Return the values when they are there."""
        for event in self.events:
            event.synchronize()
        return self.values


class AsyncCopier:
    """Brings tensors to the CPU, from whichever devices they are on."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def __call__(self, tensors: Mapping[str, Tensor]) -> HostCopy:
        """Return ``tensors`` on their way; to be called from the stream that computes them."""
        devices = {t.device for t in tensors.values() if t.is_cuda}
        for device in devices:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            self._streams[device].wait_stream(torch.cuda.current_stream(device))
        values = {name: self._landed(tensor) for name, tensor in tensors.items()}
        return HostCopy(values, tuple(self._streams[device].record_event() for device in devices))

    def _landed(self, tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor.cpu()
        stream = self._streams[tensor.device]
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        with torch.cuda.stream(stream):
            pinned.copy_(tensor, non_blocking=True)
        # Else its memory would be given away while it is still being copied.
        tensor.record_stream(stream)
        return pinned


log = logging.getLogger("hookscope")

ORIGIN_FIELDS = ("key", "module", "type", "call", "what", "kind")


class BatchSink(Protocol):
    """What is kept of a run's batches.

    Attributes:
        told: what the manifest says of each key.
        row_bytes: of one row on the disk; 0 where no row is kept.
    """

    told: list[dict[str, Any]]
    row_bytes: int

    def values(self, tensors: Mapping[str, Tensor], rows: range, bad: Sequence[int]) -> HostCopy:
        """Return what is kept of a batch, for ``write`` of the shard's file.

        Args:
            tensors: what the model gave, rows first; they may be overwritten.
            rows: their numbers.
            bad: the places in the batch of those that hold a blank.
        """

    def begin(self, place: Location, shard: Shard) -> ShardWriter:
        """Begin the file of a shard."""

    def gather(
        self, place: Location, parts: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, str], int]:
        """Return what is known of the files with the results, and of their tensors.

        That is the file of each, and the bytes of all.
        """

    def warn(self) -> None:
        """Tell of values that were lost."""


class RowSink:
    """Keeps every row, whole or made smaller.

    Attributes:
        reducers: by the key of a column; empty where rows are kept whole.
    """

    def __init__(
        self,
        columns: Sequence[RecordColumn],
        storing: StorageOptions,
        image: tuple[int, int] | None,
    ) -> None:
        self.reducers: dict[str, Reducer] = {}
        self._narrowers: dict[str, StorageCast] = {}
        self.told: list[dict[str, Any]] = []
        self._stored: list[StoredColumn] = []
        self._land = AsyncCopier()
        for column in columns:
            key = column.record.key
            if storing.reduction:
                axes = infer_axes(column.record.type, column.shape, image)
                made = make_reducer(storing.reduction, key, column.shape, column.dtype, axes)
                # Of the right shape, until there is what has been fitted.
                self.reducers[key] = replace(made, project=partial(_first, storing.reduction.count))
            if storing.dtype:
                self._narrowers[key] = StorageCast(storing.dtype)
            one = torch.zeros(1, *column.shape, dtype=column.dtype)
            for name, tensor in self._kept_of(key, one).items():
                stored = StoredColumn(name, tuple(tensor.shape[1:]), tensor.dtype)
                _demand_storable(stored)
                self._stored.append(stored)
                self.told.append(column_entry(column, stored, storing.reduction))
        self.row_bytes = sum(one.bytes for one in self._stored)

    @property
    def to_fit(self) -> dict[str, Reducer]:
        """The reducers that need to be fitted to the first rows."""
        return {k: one for k, one in self.reducers.items() if one.reduction.name == PCA}

    def take_fitted(self, place: Location) -> None:
        """Take what ``fit_layers`` wrote."""
        for key, components in read_components(self.to_fit, place).items():
            self.reducers[key] = replace(self.reducers[key], project=components)

    def _kept_of(self, key: str, rows: Tensor) -> dict[str, Tensor]:
        parts = self.reducers[key](rows) if key in self.reducers else {"": rows}
        kept: dict[str, Tensor] = {}
        for suffix, part in parts.items():
            if key in self._narrowers and part.is_floating_point():
                kept |= self._narrowers[key](f"{key}{suffix}", part)
            else:
                kept[f"{key}{suffix}"] = part
        return kept

    def values(self, tensors: Mapping[str, Tensor], rows: range, bad: Sequence[int]) -> HostCopy:
        """Return the rows; what a blank gave is NaN, or 0 for integers."""
        kept: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            kept |= self._kept_of(key, tensor)
        for tensor in kept.values() if bad else ():
            hollow = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
            tensor[list(bad)] = hollow
        return self._land(kept)

    def begin(self, place: Location, shard: Shard) -> ShardWriter:
        """Begin a shard, a file of its own that stays."""
        return ShardFile(place, shard, self._stored)

    def gather(
        self, place: Location, parts: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, str], int]:
        """Return the shards, reading none."""
        places = {
            slice_key(one.key, part["first"], part["first"] + part["rows"]): part["file"]
            for part in parts
            for one in self._stored
        }
        return list(parts), places, self.row_bytes * sum(part["rows"] for part in parts)

    def warn(self) -> None:
        """Tell of values that were lost."""
        for key, narrower in self._narrowers.items():
            if narrower.lost:
                log.warning("%s", narrower.warning(key))


def column_entry(
    column: RecordColumn, stored: StoredColumn, reduction: Reduction | None
) -> dict[str, Any]:
    """What the manifest says of a key."""
    told = {name: getattr(column.record, name) for name in ORIGIN_FIELDS}
    suffix = stored.key.removeprefix(column.record.key)
    told |= {
        "key": stored.key,
        "what": f"{column.record.what}{suffix}",
        "shape": list(stored.shape),
        "dtype": str(stored.dtype).removeprefix("torch."),
        "reduce": reduction.word if reduction else None,
    }
    if reduction and reduction.name == HISTOGRAM:
        told["edges"] = list(HISTOGRAM_EDGES)
    return told


def _first(count: int, vectors: Tensor) -> Tensor:
    return vectors[:, :count]


def _demand_storable(stored: StoredColumn) -> None:
    if stored.dtype not in SAFETENSORS_DTYPES:
        raise LayerError(
            f"{stored.key} is of dtype {str(stored.dtype)[6:]}, which shards do not hold.",
            "Leave the layer out.",
        )


class ChannelStatisticsSink:
    """Keeps no row: statistics of each shard's rows, and in the end of all of them together."""

    row_bytes = 0

    def __init__(self, columns: Sequence[RecordColumn], image: tuple[int, int] | None) -> None:
        self.told: list[dict[str, Any]] = []
        self._columns = columns
        self._axes = {c.record.key: infer_axes(c.record.type, c.shape, image) for c in columns}
        for column in columns:
            stored = StoredColumn(column.record.key, column.shape, column.dtype)
            self.told.append({**column_entry(column, stored, None), "reduce": STATISTICS_ONLY})

    def values(self, tensors: Mapping[str, Tensor], rows: range, bad: Sequence[int]) -> HostCopy:
        """Return the statistics of a batch, without what blanks gave."""
        sound = [i for i in range(len(rows)) if i not in bad]
        known = DatasetStatistics()
        for key, tensor in tensors.items():
            parts = self._axes[key].by_channel(tensor)
            known.update(key, parts[sound] if bad else parts, [rows[i] for i in sound])
        return HostCopy(known)

    def begin(self, place: Location, shard: Shard) -> ShardWriter:
        """Begin what is known of a shard's rows, which is a file only until the run is finished."""
        return _StatisticsFile(place, shard)

    def gather(
        self, place: Location, parts: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, str], int]:
        """Write the statistics of all rows, put together in the order of the rows."""
        done = [part for part in parts if part["file"] == STATISTICS]
        if not done:
            whole = DatasetStatistics()
            for part in parts:
                with place.open(part["file"]) as file:
                    whole.merge(DatasetStatistics.from_tensors(load(file.read())))
            rows = Shard(0, sum(part["rows"] for part in parts))
            scratch = place.scratch(STATISTICS)
            capture = self._capture(whole, rows.rows)
            store.write_tensors(scratch, dict(capture), capture.to_info())
            done = [publish_file(place, STATISTICS, scratch, rows)]
        with place.open(STATISTICS) as file:
            tensors = load(file.read())
        size = sum(tensor.nbytes for tensor in tensors.values())
        return done, dict.fromkeys(tensors, STATISTICS), size

    def _capture(self, whole: DatasetStatistics, rows: int) -> Capture:
        """The statistics as a capture, which ``hookscope show`` opens."""
        capture = Capture()
        summaries: list[dict[str, Any]] = []
        for column in self._columns:
            record = column.record
            known = whole.channels.get(record.key)
            if known is None:
                continue
            told = {"quantiles": known.quantiles(), "dead": known.dead}
            told |= {f.name: getattr(known, f.name) for f in fields(known)}
            for name, tensor in told.items():
                capture.put(
                    tensor,
                    module=record.module,
                    type=record.type,
                    call=record.call,
                    what=f"{record.what}.{name}",
                    kind="statistics",
                )
            summaries.append({n: getattr(record, n) for n in ORIGIN_FIELDS} | known.summary())
        capture.metadata = {
            "command": "statistics",
            "rows": rows,
            "quantiles": list(QUANTILES),
            "statistics": summaries,
        }
        return capture

    def warn(self) -> None:
        """Nothing is lost."""


class _StatisticsFile:
    """Statistics of one shard's rows while they come."""

    def __init__(self, place: Location, shard: Shard) -> None:
        self.place = place
        self.shard = shard
        self.known = DatasetStatistics()

    def write(self, first: int, values: DatasetStatistics) -> int:
        self.known.merge(values)
        return 0

    def finish(self) -> dict[str, Any]:
        told = {"schema": SCHEMA, "rows": [self.shard.first, self.shard.last]}
        scratch = self.place.scratch(self.shard.name)
        text = strict_json.dumps(told, sort_keys=True)
        # Not by save_file: its errors are not those of a disk, and the file's mode not the umask's.
        scratch.write_bytes(save(self.known.to_tensors(), {MARK: text}))
        return publish_file(self.place, self.shard.name, scratch, self.shard)

    def discard(self) -> None:
        self.place.scratch(self.shard.name).unlink(missing_ok=True)
