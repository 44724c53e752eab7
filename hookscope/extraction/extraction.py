"""One run over a dataset from the keywords to the finished folder, in one process or in several."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookscope.extraction.batch_runner import RunProgress, forward_passes, run_batches
from hookscope.extraction.extraction_plan import ExtractionPlan, check_devices, plan_extraction
from hookscope.extraction.principal_components import fit_layers, fit_row_count
from hookscope.extraction.process_group import ProcessGroup, join_process_group
from hookscope.extraction.row_batches import RowBatch
from hookscope.extraction.sharding_plan import Shard, assign_shards
from hookscope.extraction.sinks import RowSink
from hookscope.results.features import manifest
from hookscope.results.features.folder import FITTED, STATISTICS, check_folder, clear_folder
from hookscope.results.features.location import Location, parse_location
from hookscope.specs.command_options import ExtractOptions
from hookscope.specs.request import Request

log = logging.getLogger("hookscope")


@dataclass(frozen=True)
class Extraction:
    """What a run over a dataset did.

    Attributes:
        place: where the results are.
        manifest: what they are, as in its ``manifest.json``.
        state: how much this process did and where the time went.
        resumed: rows that an earlier run had done.
        team: this process among those of the run.
    """

    place: Location
    manifest: dict[str, Any]
    state: RunProgress
    resumed: int
    team: ProcessGroup

    def told(self) -> dict[str, Any]:
        """What the run did, as plain values; of times, in seconds, those of this process."""
        state = self.state
        times = {f"waited_for_{name}": value for name, value in vars(state.times).items()}
        return {"rows_now": self.rows_now, "rows_skipped": state.skipped, **times}

    @property
    def rows(self) -> int:
        """How many rows the folder holds."""
        return int(self.manifest["rows"])

    @property
    def rows_now(self) -> int:
        """How many of them the processes of this run did."""
        return self.rows - self.resumed


def extract_into(
    folder: str,
    request: Request,
    options: ExtractOptions,
    progress: Callable[[RunProgress], None],
) -> Extraction:
    """Run a model over a dataset, and write what its layers give into a folder."""
    with join_process_group() as here:
        return _extract(parse_location(folder), request, options, progress, here)


def _extract(
    place: Location,
    request: Request,
    options: ExtractOptions,
    progress: Callable[[RunProgress], None],
    here: ProcessGroup,
) -> Extraction:
    check_devices(request, options, here)
    first = here.rank == 0
    again = first and here.has_begun(place.word)
    force = options.force and not again
    if first:
        check_folder(place, resume=options.resume or again, force=force)
    job = plan_extraction(request, options, here)
    if first and force:
        clear_folder(place)
    done = manifest.start_run(place, job.plan) if first else set()
    if first:
        here.note_begun(place.word)
    done = here.agree(done)
    if STATISTICS in done:
        done = {shard.name for shard in job.shards}
    if first:
        _tell_of_idle(len(job.shards), here.world)
    if isinstance(job.keep, RowSink) and job.keep.to_fit:
        if first and place.size(FITTED) is None:
            _fit(job, job.keep, place)
        here.wait()
        job.keep.take_fitted(place)
    mine = assign_shards(job.shards, done, here.rank, here.world)
    batches = job.read([batch for shard in mine for batch in shard.batches(job.batch)])
    state = run_batches(job.work, place, mine, batches, job.keep, progress)
    state.skipped = here.total(state.skipped)
    job.keep.warn()
    here.wait()
    told = manifest.finish_run(place, job.plan, job.coverage, job.keep.gather) if first else {}
    resumed = sum(shard.rows for shard in job.shards if shard.name in done)
    return Extraction(place, here.agree(told), state, resumed, here)


def _tell_of_idle(shards: int, processes: int) -> None:
    if shards < processes:
        log.warning(
            "%d processes share %d shards, so %d have nothing to do: make shards smaller"
            " (--shard-size, --batch)",
            *(processes, shards, processes - shards),
        )


def _fit(job: ExtractionPlan, keep: RowSink, place: Location) -> None:
    """Fit what is fitted to the first rows, in whole batches so that they give what they will."""
    numbers = sum(torch.Size(job.work.columns[key].shape).numel() for key in keep.to_fit)
    every = Shard(0, job.plan["rows"])
    batches = list(every.batches(job.batch))[: -(-fit_row_count(numbers, every.rows) // job.batch)]
    with forward_passes(job.work) as give:
        fit_layers(keep.to_fit, (_sound(give(batch), batch) for batch in job.read(batches)), place)


def _sound(tensors: dict[str, Tensor], batch: RowBatch) -> dict[str, Tensor]:
    """Without what blanks gave."""
    sound = [i for i in range(len(batch.rows)) if i not in batch.bad]
    return {key: tensor[sound] for key, tensor in tensors.items()} if batch.bad else tensors
