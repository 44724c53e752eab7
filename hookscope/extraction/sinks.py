"""What is stored of each batch: rows, whole or reduced, or only statistics of all rows.

Values are copied to the CPU while the device computes the next batch. From CUDA they are copied to
pinned memory on a separate stream, and must not be read before the event after the copy.
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
from hookscope.extraction.channel_statistics import HISTOGRAM_EDGES, QUANTILES, DatasetStatistics
from hookscope.extraction.reducer import Reducer, make_reducer, read_components, token_mask
from hookscope.extraction.row_batches import RowBatch
from hookscope.extraction.shape_probe import RecordColumn
from hookscope.extraction.shard_writer import (
    Shard,
    ShardFile,
    ShardWriter,
    StorageCast,
    StoredColumn,
    publish_file,
)
from hookscope.extraction.text_rows import (
    axes_of,
    check_reduces_tokens,
    has_tokens,
    stores_positions,
)
from hookscope.files import strict_json
from hookscope.files.output_path import MARK
from hookscope.hooks.capture import Capture
from hookscope.results.metadata import LayerStatistics
from hookscope.specs.extract_options import HISTOGRAM, PCA, TOKENS, Reduction, StorageOptions
from hookscope.stores.capture_file import SCHEMA
from hookscope.stores.features.folder import STATISTICS, STATISTICS_ONLY, slice_key
from hookscope.stores.features.location import Location
from hookscope.stores.features.manifest import GatheredResults, KeyEntry, RowFile
from hookscope.tensors.copy_streams import CopyStreams
from hookscope.tensors.save import SAFETENSORS_DTYPES, write_tensors

log = logging.getLogger("hookscope")


@dataclass(frozen=True)
class HostCopy:
    """Values that are on the CPU, or will be once ``events`` have happened."""

    values: Any
    events: tuple[Any, ...] = ()

    def wait(self) -> Any:
        """Return the values when the copy is complete."""
        for event in self.events:
            event.synchronize()
        return self.values


class AsyncCopier:
    """Copies tensors to the CPU, from whichever devices they are on."""

    def __init__(self) -> None:
        self._streams = CopyStreams()

    def __call__(self, tensors: Mapping[str, Tensor]) -> HostCopy:
        """Start to copy ``tensors``; call it on the stream that computes them."""
        values = {
            name: self._streams.to_host(tensor.contiguous()) if tensor.is_cuda else tensor.cpu()
            for name, tensor in tensors.items()
        }
        return HostCopy(values, tuple(self._streams.events()))


class BatchSink(Protocol):
    """Decides what is stored of a run's batches.

    Attributes:
        key_entries: the manifest's entry of each key.
        row_bytes: size of one row on disk; 0 if no rows are stored.
    """

    key_entries: list[KeyEntry]
    row_bytes: int

    def values(self, tensors: Mapping[str, Tensor], batch: RowBatch) -> HostCopy:
        """Return the values to store of a batch, for ``write`` of the shard's writer.

        Args:
            tensors: what the model returned, rows first; they may be overwritten.
            batch: the rows, which of them are placeholders, and the mask of texts.
        """

    def begin(self, location: Location, shard: Shard) -> ShardWriter:
        """Begin the file of a shard."""

    def gather(self, location: Location, parts: Sequence[RowFile]) -> GatheredResults:
        """Return what the manifest and the index tell of the files with the results.

        Args:
            location: the folder of results.
            parts: the entries of the finished shards.
        """

    def warn(self) -> None:
        """Log a warning about values that were lost."""


class RowSink:
    """Stores every row, whole or reduced."""

    def __init__(
        self,
        columns: Sequence[RecordColumn],
        storage: StorageOptions,
        image: tuple[int, int] | None,
        length: int | None = None,
    ) -> None:
        self.reducers: dict[str, Reducer] = {}
        self._casts: dict[str, StorageCast] = {}
        self.key_entries: list[KeyEntry] = []
        self._stored: list[StoredColumn] = []
        self._copy = AsyncCopier()
        for column in columns:
            key = column.record.key
            varies = column.tokens is not None
            if varies:
                check_reduces_tokens(column, storage.reduction)
            axes = axes_of(column, image)
            placed = has_tokens(column, axes, length) and stores_positions(storage.reduction)
            if storage.reduction:
                form = storage.reduction, key, column.shape, column.dtype
                reducer = make_reducer(*form, axes, varies)
                # Until components are fitted: a projection with a result of the right shape.
                project = partial(_first_values, storage.reduction.count)
                self.reducers[key] = replace(reducer, places=placed, project=project)
            if storage.dtype:
                self._casts[key] = StorageCast(storage.dtype)
            row = torch.zeros(1, *column.shape, dtype=column.dtype)
            for name, tensor in self._convert(key, row).items():
                stored = StoredColumn(name, tuple(tensor.shape[1:]), tensor.dtype)
                if stored.dtype not in SAFETENSORS_DTYPES:
                    raise LayerError(
                        f"{stored.key} has dtype {str(stored.dtype)[6:]}, which cannot be stored.",
                        "Leave the layer out.",
                    )
                self._stored.append(stored)
                self.key_entries.append(column_entry(column, stored, storage.reduction, placed))
        self.row_bytes = sum(stored.bytes for stored in self._stored)

    @property
    def to_fit(self) -> dict[str, Reducer]:
        """The reducers that need to be fitted to the first rows."""
        return {k: reducer for k, reducer in self.reducers.items() if reducer.reduction.name == PCA}

    def load_fitted(self, location: Location) -> None:
        """Use the components that ``fit_layers`` wrote."""
        for key, components in read_components(self.to_fit, location).items():
            self.reducers[key] = replace(self.reducers[key], project=components)

    def _convert(self, key: str, rows: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """The stored tensors of a key's rows: reduced, then cast."""
        parts = self.reducers[key](rows, mask) if key in self.reducers else {"": rows}
        stored: dict[str, Tensor] = {}
        for suffix, part in parts.items():
            if key in self._casts and part.is_floating_point():
                stored |= self._casts[key](f"{key}{suffix}", part)
            else:
                stored[f"{key}{suffix}"] = part
        return stored

    def values(self, tensors: Mapping[str, Tensor], batch: RowBatch) -> HostCopy:
        """Return the rows; those of placeholders are NaN, or 0 for integers."""
        stored: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            stored |= self._convert(key, tensor, batch.mask)
        for tensor in stored.values() if batch.bad else ():
            missing = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
            tensor[list(batch.bad)] = missing
        return self._copy(stored)

    def begin(self, location: Location, shard: Shard) -> ShardWriter:
        """Begin the file of a shard, which stays as it is."""
        return ShardFile(location, shard, self._stored)

    def gather(self, location: Location, parts: Sequence[RowFile]) -> GatheredResults:
        """Return the shards, without reading them."""
        files = {
            slice_key(stored.key, part["first"], part["first"] + part["rows"]): part["file"]
            for part in parts
            for stored in self._stored
        }
        return list(parts), files, self.row_bytes * sum(part["rows"] for part in parts)

    def warn(self) -> None:
        """Log a warning about values that were lost."""
        for key, conversion in self._casts.items():
            if conversion.lost:
                log.warning("%s", conversion.warning(key))


def column_entry(
    column: RecordColumn, stored: StoredColumn, reduction: Reduction | None, placed: bool
) -> KeyEntry:
    """The manifest's entry of a key; ``placed`` if its positions are tokens of texts."""
    record = column.record
    entry: KeyEntry = {
        "key": stored.key,
        "module": record.module,
        "type": record.type,
        "call": record.call,
        "what": f"{record.what}{stored.key.removeprefix(record.key)}",
        "kind": record.kind,
        "shape": list(stored.shape),
        "dtype": str(stored.dtype).removeprefix("torch."),
        "reduce": reduction.text if reduction else None,
    }
    if reduction and reduction.name == HISTOGRAM:
        entry["edges"] = list(HISTOGRAM_EDGES)
    if placed:
        entry["positions"] = TOKENS
    return entry


def _first_values(count: int, vectors: Tensor) -> Tensor:
    return vectors[:, :count]


class ChannelStatisticsSink:
    """Stores no rows, but the statistics of all rows, merged from those of the shards."""

    row_bytes = 0

    def __init__(self, columns: Sequence[RecordColumn], image: tuple[int, int] | None) -> None:
        self.key_entries: list[KeyEntry] = []
        self._columns = columns
        self._axes = {c.record.key: axes_of(c, image) for c in columns}
        for column in columns:
            stored = StoredColumn(column.record.key, column.shape, column.dtype)
            entry = column_entry(column, stored, None, placed=False)
            self.key_entries.append({**entry, "reduce": STATISTICS_ONLY})

    def values(self, tensors: Mapping[str, Tensor], batch: RowBatch) -> HostCopy:
        """Return the statistics of a batch, without its placeholders and without padding."""
        usable = [i for i in range(len(batch.rows)) if i not in batch.bad]
        statistics = DatasetStatistics()
        for key, tensor in tensors.items():
            axes = self._axes[key]
            parts = axes.by_channel(tensor)
            mask = token_mask(axes, tensor, batch.mask)
            if mask is None or bool(mask.all()):
                rows = [batch.rows[i] for i in usable]
                statistics.update(key, parts[usable] if batch.bad else parts, rows)
                continue
            for i in usable:  # each has another number of tokens
                statistics.update(key, parts[i : i + 1, :, mask[i]], [batch.rows[i]])
        return HostCopy(statistics)

    def begin(self, location: Location, shard: Shard) -> ShardWriter:
        """Begin the statistics of a shard's rows; their file is removed when the run finishes."""
        return _StatisticsFile(location, shard)

    def gather(self, location: Location, parts: Sequence[RowFile]) -> GatheredResults:
        """Write the statistics of all rows, merged in the order of the rows."""
        done = [part for part in parts if part["file"] == STATISTICS]
        if not done:
            statistics = DatasetStatistics()
            for part in parts:
                with location.open(part["file"]) as file:
                    statistics.merge(DatasetStatistics.from_tensors(load(file.read())))
            rows = Shard(0, sum(part["rows"] for part in parts))
            scratch = location.scratch(STATISTICS)
            capture = self._capture(statistics, rows.rows)
            write_tensors(scratch, dict(capture), capture.to_info())
            done = [publish_file(location, STATISTICS, scratch, rows)]
        with location.open(STATISTICS) as file:
            tensors = load(file.read())
        size = sum(tensor.nbytes for tensor in tensors.values())
        return done, dict.fromkeys(tensors, STATISTICS), size

    def _capture(self, statistics: DatasetStatistics, rows: int) -> Capture:
        """The statistics as a capture, which ``hookscope show`` opens."""
        capture = Capture()
        summaries: list[LayerStatistics] = []
        for column in self._columns:
            record = column.record
            channels = statistics.channels.get(record.key)
            if channels is None:
                continue
            tensors = {"quantiles": channels.quantiles(), "dead": channels.dead}
            tensors |= {f.name: getattr(channels, f.name) for f in fields(channels)}
            for name, tensor in tensors.items():
                capture.put(
                    tensor,
                    module=record.module,
                    type=record.type,
                    call=record.call,
                    what=f"{record.what}.{name}",
                    kind="statistics",
                )
            summaries.append(
                {
                    "key": record.key,
                    "module": record.module,
                    "type": record.type,
                    "call": record.call,
                    "what": record.what,
                    "kind": record.kind,
                    **channels.summary(),
                }
            )
        capture.metadata = {
            "command": "statistics",
            "rows": rows,
            "quantiles": list(QUANTILES),
            "statistics": summaries,
        }
        return capture

    def warn(self) -> None:
        """Do nothing: no values are lost."""


class _StatisticsFile:
    """Writes the statistics of one shard's rows."""

    def __init__(self, location: Location, shard: Shard) -> None:
        self.location = location
        self.shard = shard
        self.statistics = DatasetStatistics()

    def write(self, rows: Sequence[int], values: DatasetStatistics) -> int:
        self.statistics.merge(values)
        return 0

    def finish(self) -> RowFile:
        metadata = {"schema": SCHEMA, "rows": [self.shard.first, self.shard.last]}
        scratch = self.location.scratch(self.shard.name)
        text = strict_json.dumps(metadata, sort_keys=True)
        # Not save_file: its errors are not OSErrors, and its files ignore the umask.
        scratch.write_bytes(save(self.statistics.to_tensors(), {MARK: text}))
        return publish_file(self.location, self.shard.name, scratch, self.shard)

    def discard(self) -> None:
        self.location.scratch(self.shard.name).unlink(missing_ok=True)
