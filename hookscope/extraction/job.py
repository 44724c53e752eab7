"""What a run over a dataset does, settled before its first row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import LayerError, RequestError
from hookscope.execution.failures.explaining import failures_explained
from hookscope.execution.prepare import Prepared
from hookscope.execution.provenance import versions
from hookscope.extraction.fingerprint import identity
from hookscope.extraction.items import Items, items_of
from hookscope.extraction.keeping import Keep, KeepRows
from hookscope.extraction.planning import Shard, rows_in_shard, shards_of
from hookscope.extraction.preparing import batch_size, prepare_rows, workers_of
from hookscope.extraction.probing import FEW, Column, Probe, probe
from hookscope.extraction.ranks import Team
from hookscope.extraction.rows import Collator, RowBatch, batches_of
from hookscope.extraction.running import Work
from hookscope.extraction.tallying import KeepStatistics
from hookscope.results.module_tree import ROOT
from hookscope.specs.command_options import ExtractOptions
from hookscope.specs.input_list import Entry, list_entries
from hookscope.specs.reduction import Storing
from hookscope.specs.request import Request, as_texts
from hookscope.tensors.nested import map_tensors


@dataclass(frozen=True)
class Job:
    """What a run does.

    Attributes:
        work: what is done with each batch.
        keep: what is kept of it.
        read: reads the rows of batches.
        batch: rows of one, but for the last.
        shards: all of them, done or not.
        plan: everything that the bytes depend on, as plain values.
        coverage: which of the chosen modules run, ``fired``, and which do not, ``silent``.
    """

    work: Work
    keep: Keep
    read: Callable[[Sequence[range]], Iterable[RowBatch]]
    batch: int
    shards: Sequence[Shard]
    plan: dict[str, Any]
    coverage: dict[str, Any]


# Options that the bytes of the results do not depend on.
NOT_IN_PLAN = {"memory", "max_memory", "workers", "resume", "force"}


def refuse_misfits(request: Request, options: ExtractOptions, here: Team) -> None:
    """Refuse what does not go together, before anything is done."""
    if request.run.device_map is not None and here.local_world > 1:
        raise RequestError(
            f"{here.local_world} processes of one machine would each spread the model over all its"
            " devices.",
            "Start one process on each machine, or leave out --device-map.",
        )
    if request.run.device_map is not None and options.channels_last:
        raise RequestError(
            "Weights that come and go keep no memory format: --channels-last does not go with"
            " --device-map.",
            "Leave out one of them.",
        )


def settle(request: Request, options: ExtractOptions, here: Team) -> Job:
    """Settle what a run over a dataset is going to do.

    Args:
        request: the model, the layers and the inputs.
        options: how the inputs are gone through, and what is stored.
        here: this process among those of the run.

    Raises:
        ModelError, LayerError, InputError, RequestError: a word, a pattern or a file is wrong.
        ForwardError: the model itself raised.
    """
    storing, kinds = options.storing, options.kinds
    inputs, told = _inputs(request, options)
    run = replace(request.run, device=_device(request.run.device, here))
    prepared, rows = prepare_rows(replace(request, run=run), options, inputs)
    arrange, blank, total = rows.arrange, rows.blank, len(rows.each)
    found = _probe(options, prepared, kinds, lambda count: arrange([blank] * count))
    keep = _keep_of(found.columns, storing, _image(blank))
    work = _work(options, prepared, found, kinds)
    row_bytes = sum(column.bytes for column in found.columns)
    own = inputs.batch if isinstance(inputs, Items) else None
    limits = row_bytes, options.memory, total, prepared.device.type
    size = options.batch or own or batch_size(arrange([blank]), *limits)
    shard_rows = rows_in_shard(keep.row_bytes or row_bytes, size, options.shard_size, total)
    chosen = {k: v for k, v in request.chosen(options).items() if k not in NOT_IN_PLAN}
    plan = {
        **_origin(prepared, chosen, work),
        "keys": keep.told,
        "inputs": {**told, "rows": total},
        "rows": total,
        "batch": size,
        "shard_rows": shard_rows,
    }
    read = partial(
        batches_of,
        rows.each,
        collate=Collator(arrange, blank),
        workers=workers_of(options.workers, here.local_world),
        pin=prepared.device.type == "cuda",
    )
    return Job(work, keep, read, size, shards_of(total, shard_rows), plan, found.coverage)


def _device(word: str | None, here: Team) -> str | None:
    """Of several processes on a machine each has a GPU of its own."""
    return f"cuda:{here.local_rank}" if word == "cuda" and here.world > 1 else word


def _inputs(
    request: Request, options: ExtractOptions
) -> tuple[Sequence[Entry] | Items, dict[str, Any]]:
    """The inputs, and what the manifest tells of them."""
    given = request.input.input
    items = items_of(given, options.every, request.run.seed)
    if items is not None:
        return items, {"words": [items.word], "sha256": None}
    words = list(as_texts(given or ()))
    entries = list_entries(words, skip_bad=options.skip_bad)[:: options.every]
    return entries, {"words": words, "sha256": _known_by(entries)}


def _known_by(entries: Sequence[Entry]) -> str:
    """A hash of the names of the inputs in their order."""
    # Names that are no text in UTF-8 have something else in the place of their bytes.
    names = "\n".join(entry.name for entry in entries).encode(errors="backslashreplace")
    return hashlib.sha256(names).hexdigest()


def _probe(
    options: ExtractOptions,
    prepared: Prepared,
    kinds: set[str],
    blanks: Callable[[int], Any],
) -> Probe:
    dtype = getattr(torch, prepared.dtype)

    def call_of(count: int) -> Any:
        return map_tensors(
            blanks(count), lambda path, t: t.to(dtype) if t.is_floating_point() else t
        )

    first = map_tensors(call_of(FEW), lambda path, tensor: tensor.to(prepared.device))
    with failures_explained(replace(prepared, value=first, sources=({"word": "rows"},))):
        return probe(
            prepared.module,
            prepared.layers,
            kinds,
            call_of,
            seed=prepared.seed,
            autocast=_autocast(options),
        )


def _keep_of(columns: Sequence[Column], storing: Storing, image: tuple[int, int] | None) -> Keep:
    if not columns:
        raise LayerError("The chosen layers give no tensor.", "Choose others with --layer.")
    return (
        KeepStatistics(columns, image) if storing.stats_only else KeepRows(columns, storing, image)
    )


def _image(blank: Any) -> tuple[int, int] | None:
    """Height and width of the model's input, where it is an image."""
    image = isinstance(blank, Tensor) and blank.ndim > 2
    return (blank.shape[-2], blank.shape[-1]) if image else None


def _work(options: ExtractOptions, prepared: Prepared, found: Probe, kinds: set[str]) -> Work:
    last = found.last if options.stop and found.last and found.last[0] != ROOT else None
    return Work(
        module=prepared.module,
        layers=prepared.layers,
        kinds=frozenset(kinds),
        columns={column.record.key: column for column in found.columns},
        last=last,
        seed=prepared.seed,
        device=prepared.device,
        dtype=getattr(torch, prepared.dtype),
        autocast=_autocast(options),
        channels_last=options.channels_last,
        skip_bad=options.skip_bad,
    )


def _autocast(options: ExtractOptions) -> torch.dtype | None:
    return getattr(torch, options.autocast) if options.autocast else None


def _origin(prepared: Prepared, options: dict[str, Any], work: Work) -> dict[str, Any]:
    """Model and options, as plain values."""
    return {
        "command": "extract",
        "options": options,
        "model": identity(prepared.loaded),
        "seed": prepared.seed,
        "device": prepared.device.type,
        "dtype": prepared.dtype,
        "stopped_after": work.last[0] if work.last else None,
        "versions": versions(),
    }
