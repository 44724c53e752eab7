"""Statistics alone: what is known of each shard's rows, and in the end of all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from hookscope.extraction.axes import axes_of
from hookscope.extraction.keeping import ORIGIN, told_of
from hookscope.extraction.landing import Landing
from hookscope.extraction.planning import Shard
from hookscope.extraction.probing import Column
from hookscope.extraction.shards import Growing, Stored, take
from hookscope.extraction.statistics import QUANTILES, Statistics
from hookscope.files import strict_json
from hookscope.hooks.capture import Capture
from hookscope.results.features.folder import STATISTICS, STATISTICS_ONLY
from hookscope.results.features.location import Place
from hookscope.results.header import SCHEMA
from hookscope.specs.output_path import MARK
from hookscope.tensors import save as store


class KeepStatistics:
    """Keeps no row: statistics of each shard's rows, and in the end of all of them together."""

    row_bytes = 0

    def __init__(self, columns: Sequence[Column], image: tuple[int, int] | None) -> None:
        self.told: list[dict[str, Any]] = []
        self._columns = columns
        self._axes = {c.record.key: axes_of(c.record.type, c.shape, image) for c in columns}
        for column in columns:
            stored = Stored(column.record.key, column.shape, column.dtype)
            self.told.append({**told_of(column, stored, None), "reduce": STATISTICS_ONLY})

    def values(self, tensors: Mapping[str, Tensor], rows: range, bad: Sequence[int]) -> Landing:
        """Return the statistics of a batch, without what blanks gave."""
        sound = [i for i in range(len(rows)) if i not in bad]
        known = Statistics()
        for key, tensor in tensors.items():
            parts = self._axes[key].by_channel(tensor)
            known.update(key, parts[sound] if bad else parts, [rows[i] for i in sound])
        return Landing(known)

    def begin(self, place: Place, shard: Shard) -> Growing:
        """Begin what is known of a shard's rows, which is a file only until the run is finished."""
        return _StatisticsFile(place, shard)

    def gather(
        self, place: Place, parts: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, str], int]:
        """Write the statistics of all rows, put together in the order of the rows."""
        done = [part for part in parts if part["file"] == STATISTICS]
        if not done:
            whole = Statistics()
            for part in parts:
                with place.open(part["file"]) as file:
                    whole.merge(Statistics.from_tensors(load(file.read())))
            rows = Shard(0, sum(part["rows"] for part in parts))
            scratch = place.scratch(STATISTICS)
            capture = self._capture(whole, rows.rows)
            store.write(scratch, dict(capture), capture.to_info())
            done = [take(place, STATISTICS, scratch, rows)]
        with place.open(STATISTICS) as file:
            tensors = load(file.read())
        size = sum(tensor.nbytes for tensor in tensors.values())
        return done, dict.fromkeys(tensors, STATISTICS), size

    def _capture(self, whole: Statistics, rows: int) -> Capture:
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
            summaries.append({n: getattr(record, n) for n in ORIGIN} | known.summary())
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

    def __init__(self, place: Place, shard: Shard) -> None:
        self.place = place
        self.shard = shard
        self.known = Statistics()

    def write(self, first: int, values: Statistics) -> int:
        self.known.merge(values)
        return 0

    def finish(self) -> dict[str, Any]:
        told = {"schema": SCHEMA, "rows": [self.shard.first, self.shard.last]}
        scratch = self.place.scratch(self.shard.name)
        text = strict_json.dumps(told, sort_keys=True)
        # Not by save_file: its errors are not those of a disk, and the file's mode not the umask's.
        scratch.write_bytes(save(self.known.to_tensors(), {MARK: text}))
        return take(self.place, self.shard.name, scratch, self.shard)

    def discard(self) -> None:
        self.place.scratch(self.shard.name).unlink(missing_ok=True)
