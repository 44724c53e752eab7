"""One run over a dataset, from the request to the finished folder, in one process or in several."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookscope.extraction.batch_runner import RunProgress, run_batches
from hookscope.extraction.extraction_plan import ExtractionPlan, check_devices, plan_extraction
from hookscope.extraction.process_group import ProcessGroup, join_process_group
from hookscope.extraction.reducer import fit_layers, fit_row_count
from hookscope.extraction.row_batches import RowBatch
from hookscope.extraction.shard_writer import Shard, assign_shards
from hookscope.extraction.sinks import RowSink
from hookscope.results.result import Result
from hookscope.specs.extract_options import ExtractOptions
from hookscope.specs.request import Request
from hookscope.stores.features.folder import FITTED, STATISTICS, check_folder, clear_folder
from hookscope.stores.features.location import Location, parse_location
from hookscope.stores.features.manifest import Manifest, finish_run
from hookscope.stores.features.resumption import start_run

log = logging.getLogger("hookscope")


@dataclass(frozen=True)
class Extraction(Result):
    """The result of a run over a dataset.

    Attributes:
        location: the folder of the results.
        manifest: what they are, as in its ``manifest.json``.
        state: how much this process did and where the time went.
        resumed: number of rows that an earlier run had done.
        group: the processes of the run.
    """

    view = "features.EXTRACTION"

    location: Location
    manifest: Manifest
    state: RunProgress
    resumed: int
    group: ProcessGroup

    def __repr__(self) -> str:
        keys = ", ".join(str(entry["key"]) for entry in self.manifest["keys"])
        return f"<Extraction to {self.location}: {self.rows} rows of {keys}>"

    def to_json(self) -> dict[str, Any]:
        """Return the manifest, ``summary()`` and the folder."""
        return {**self.manifest, **self.summary(), "folder": str(self.location)}

    def summary(self) -> dict[str, Any]:
        """What the run did, as plain values; times are those of this process, in seconds."""
        times = {f"waited_for_{name}": value for name, value in vars(self.state.times).items()}
        return {"rows_now": self.rows_now, "rows_skipped": self.state.skipped, **times}

    @property
    def rows(self) -> int:
        """Number of rows in the folder."""
        return int(self.manifest["rows"])

    @property
    def rows_now(self) -> int:
        """Number of rows that the processes of this run did."""
        return self.rows - self.resumed


def extract_into(
    folder: str,
    request: Request,
    options: ExtractOptions,
    progress: Callable[[RunProgress], None],
) -> Extraction:
    """Run a model over a dataset, and write the rows of its layers to a folder."""
    with join_process_group() as group:
        return _extract(parse_location(folder), request, options, progress, group)


def _extract(
    location: Location,
    request: Request,
    options: ExtractOptions,
    progress: Callable[[RunProgress], None],
    group: ProcessGroup,
) -> Extraction:
    check_devices(request, options, group)
    first = group.rank == 0
    restarted = first and group.was_started(location.address)
    force = options.force and not restarted
    if first:
        check_folder(location, resume=options.resume or restarted, force=force)
    plan = plan_extraction(request, options, group)
    if first and force:
        clear_folder(location)
    done = start_run(location, plan.settings) if first else set()
    if first:
        group.mark_started(location.address)
    done = group.broadcast(done)
    if STATISTICS in done:
        done = {shard.name for shard in plan.shards}
    if first:
        _warn_of_unused_processes(len(plan.shards), group.world)
    if isinstance(plan.sink, RowSink) and plan.sink.to_fit:
        if first and location.size(FITTED) is None:
            _fit(plan, plan.sink, location)
        group.barrier()
        plan.sink.load_fitted(location)
    assigned = assign_shards(plan.shards, done, group.rank, group.world)
    resumed = sum(shard.rows for shard in plan.shards if shard.name in done)
    earlier = resumed if group.world == 1 else 0  # several processes count their own rows
    chosen = (batch for shard in assigned for batch in plan.batches(shard))
    with closing(plan.read(chosen)) as batches:
        state = run_batches(plan.runner, location, assigned, batches, plan.sink, progress, earlier)
    state.skipped = group.sum(state.skipped)
    plan.sink.warn()
    group.barrier()
    manifest = None
    if first:
        manifest = finish_run(location, plan.settings, plan.coverage, plan.sink.gather)
    return Extraction(location, group.broadcast(manifest), state, resumed, group)


def _warn_of_unused_processes(shards: int, processes: int) -> None:
    if shards < processes:
        log.warning(
            "%d processes share %d shards, so %d have nothing to do: make shards smaller"
            " (--shard-size, --batch)",
            *(processes, shards, processes - shards),
        )


def _fit(plan: ExtractionPlan, sink: RowSink, location: Location) -> None:
    """Fit components to the first rows, in the same batches as those of the run."""
    columns = plan.runner.columns
    values_per_row = sum(torch.Size(columns[key].shape).numel() for key in sink.to_fit)
    rows = plan.settings["rows"]
    count = -(-fit_row_count(values_per_row, rows) // plan.batch)
    first = Shard(0, min(count * plan.batch, rows))
    with (
        plan.runner.forward_passes() as forward,
        closing(plan.read(plan.batches(first))) as batches,
    ):
        tensors = (_usable_rows(forward(batch), batch) for batch in batches)
        fit_layers(sink.to_fit, tensors, location)


def _usable_rows(tensors: dict[str, Tensor], batch: RowBatch) -> dict[str, Tensor]:
    """The rows without those of placeholders."""
    usable = [i for i in range(len(batch.rows)) if i not in batch.bad]
    return {key: tensor[usable] for key, tensor in tensors.items()} if batch.bad else tensors
