"""Which model it was, where no file of weights tells: hashes of its values and of its source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import LayerError, RequestError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.prepare import Prepared
from hookscope.execution.provenance import versions
from hookscope.extraction.batch_runner import BatchRunner
from hookscope.extraction.item_rows import DatasetItems, find_items
from hookscope.extraction.prepared_rows import batch_size, prepare_rows, worker_count
from hookscope.extraction.process_group import ProcessGroup
from hookscope.extraction.row_batches import Collator, RowBatch, load_batches
from hookscope.extraction.shape_probe import FEW, RecordColumn, ShapeProbe, probe_shapes
from hookscope.extraction.sharding_plan import Shard, plan_shards, shard_row_count
from hookscope.extraction.sinks import BatchSink, ChannelStatisticsSink, RowSink
from hookscope.files.weight_files import sha256_of
from hookscope.results.module_tree import ROOT
from hookscope.sources.loaded import LoadedModel
from hookscope.specs.command_options import ExtractOptions
from hookscope.specs.input_list import InputEntry, list_entries
from hookscope.specs.model_spec import FILE, parse_model
from hookscope.specs.reduction import StorageOptions
from hookscope.specs.request import Request, as_texts
from hookscope.tensors.hash import hash_tensors
from hookscope.tensors.nested import map_tensors


def model_identity(loaded: LoadedModel) -> dict[str, Any]:
    """What the manifest tells of a model.

    ``state_blake3`` is None where the hash of a file that holds all weights tells already,
    ``code_sha256`` where the model was not built by a file of Python source.
    """
    digest = loaded.weights.blake3
    settled = digest and not loaded.weights.missing
    values = chain(loaded.module.named_parameters(), loaded.module.named_buffers())
    return {
        "word": loaded.word,
        "source": loaded.source,
        "weights": loaded.weights.word,
        "blake3": digest,
        "state_blake3": None if settled else hash_tensors(values),
        "code_sha256": sha256_of(parse_model(loaded.word).path) if loaded.source == FILE else None,
    }


@dataclass(frozen=True)
class ExtractionPlan:
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

    work: BatchRunner
    keep: BatchSink
    read: Callable[[Sequence[range]], Iterable[RowBatch]]
    batch: int
    shards: Sequence[Shard]
    plan: dict[str, Any]
    coverage: dict[str, Any]


# Options that the bytes of the results do not depend on.
NOT_IN_PLAN = {"memory", "max_memory", "workers", "resume", "force"}


def check_devices(request: Request, options: ExtractOptions, here: ProcessGroup) -> None:
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


def plan_extraction(
    request: Request, options: ExtractOptions, here: ProcessGroup
) -> ExtractionPlan:
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
    own = inputs.batch if isinstance(inputs, DatasetItems) else None
    limits = row_bytes, options.memory, total, prepared.device.type
    size = options.batch or own or batch_size(arrange([blank]), *limits)
    shard_rows = shard_row_count(keep.row_bytes or row_bytes, size, options.shard_size, total)
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
        load_batches,
        rows.each,
        collate=Collator(arrange, blank),
        workers=worker_count(options.workers, here.local_world),
        pin=prepared.device.type == "cuda",
    )
    return ExtractionPlan(
        work, keep, read, size, plan_shards(total, shard_rows), plan, found.coverage
    )


def _device(word: str | None, here: ProcessGroup) -> str | None:
    """Of several processes on a machine each has a GPU of its own."""
    return f"cuda:{here.local_rank}" if word == "cuda" and here.world > 1 else word


def _inputs(
    request: Request, options: ExtractOptions
) -> tuple[Sequence[InputEntry] | DatasetItems, dict[str, Any]]:
    """The inputs, and what the manifest tells of them."""
    given = request.input.input
    items = find_items(given, options.every, request.run.seed)
    if items is not None:
        return items, {"words": [items.word], "sha256": None}
    words = list(as_texts(given or ()))
    entries = list_entries(words, skip_bad=options.skip_bad)[:: options.every]
    return entries, {"words": words, "sha256": _known_by(entries)}


def _known_by(entries: Sequence[InputEntry]) -> str:
    """A hash of the names of the inputs in their order."""
    # Names that are no text in UTF-8 have something else in the place of their bytes.
    names = "\n".join(entry.name for entry in entries).encode(errors="backslashreplace")
    return hashlib.sha256(names).hexdigest()


def _probe(
    options: ExtractOptions,
    prepared: Prepared,
    kinds: set[str],
    blanks: Callable[[int], Any],
) -> ShapeProbe:
    dtype = getattr(torch, prepared.dtype)

    def call_of(count: int) -> Any:
        return map_tensors(
            blanks(count), lambda path, t: t.to(dtype) if t.is_floating_point() else t
        )

    first = map_tensors(call_of(FEW), lambda path, tensor: tensor.to(prepared.device))
    with explain_forward_errors(replace(prepared, value=first, sources=({"word": "rows"},))):
        return probe_shapes(
            prepared.module,
            prepared.layers,
            kinds,
            call_of,
            seed=prepared.seed,
            autocast=_autocast(options),
        )


def _keep_of(
    columns: Sequence[RecordColumn], storing: StorageOptions, image: tuple[int, int] | None
) -> BatchSink:
    if not columns:
        raise LayerError("The chosen layers give no tensor.", "Choose others with --layer.")
    return (
        ChannelStatisticsSink(columns, image)
        if storing.stats_only
        else RowSink(columns, storing, image)
    )


def _image(blank: Any) -> tuple[int, int] | None:
    """Height and width of the model's input, where it is an image."""
    image = isinstance(blank, Tensor) and blank.ndim > 2
    return (blank.shape[-2], blank.shape[-1]) if image else None


def _work(
    options: ExtractOptions, prepared: Prepared, found: ShapeProbe, kinds: set[str]
) -> BatchRunner:
    last = found.last if options.stop and found.last and found.last[0] != ROOT else None
    return BatchRunner(
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


def _origin(prepared: Prepared, options: dict[str, Any], work: BatchRunner) -> dict[str, Any]:
    """Model and options, as plain values."""
    return {
        "command": "extract",
        "options": options,
        "model": model_identity(prepared.loaded),
        "seed": prepared.seed,
        "device": prepared.device.type,
        "dtype": prepared.dtype,
        "stopped_after": work.last[0] if work.last else None,
        "versions": versions(),
    }
