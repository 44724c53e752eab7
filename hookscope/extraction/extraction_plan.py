"""The plan of a run over a dataset, complete before its first row."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
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
from hookscope.extraction.prepared_rows import (
    DatasetInputs,
    PreparedRows,
    batch_size,
    prepare_rows,
    worker_count,
)
from hookscope.extraction.process_group import ProcessGroup
from hookscope.extraction.row_batches import Collator, ImageRows, RowBatch, load_batches
from hookscope.extraction.shape_probe import (
    FEW,
    RecordColumn,
    ShapeProbe,
    TextLengths,
    probe_shapes,
)
from hookscope.extraction.shard_writer import Shard, plan_shards, shard_row_count
from hookscope.extraction.sinks import BatchSink, ChannelStatisticsSink, RowSink
from hookscope.extraction.text_rows import TextDataset, TextRows, token_count
from hookscope.files.hashes import sha256_of
from hookscope.files.hub_source import HubSource, hub_source
from hookscope.files.input_list import InputEntry, list_entries
from hookscope.files.text_sources import text_sources
from hookscope.inputs.hub_stream import HubImages, HubStream, HubTexts
from hookscope.inputs.text_formats import open_texts
from hookscope.inputs.visible_part import find_visible_part
from hookscope.results.records import Coverage
from hookscope.sources.loaded import LoadedModel
from hookscope.specs.extract_options import ExtractOptions, StorageOptions
from hookscope.specs.model_spec import FILE, parse_model
from hookscope.specs.patterns import ROOT, as_texts
from hookscope.specs.request import Request
from hookscope.stores.features.manifest import (
    Plan,
    PlannedInputs,
    PlannedModel,
    PlanOrigin,
    VisiblePart,
)
from hookscope.tensors.hash import hash_tensors
from hookscope.tensors.nested import map_tensors

log = logging.getLogger("hookscope")

_TEXT_TOKENS = 128  # of each text of a batch, if their number is not the user's choice
# Options that do not change the bytes of the results.
NOT_IN_PLAN = {"memory", "max_memory", "workers", "resume", "force"}


def tolerates_padding(runner: BatchRunner, rows: TextRows, one: Any, other: Any) -> bool:
    """Whether a text has the same values alone and in a batch with a longer one.

    Same up to rounding: they may differ by the square root of the dtype's epsilon, as a share of
    the largest value of the text. A model that ignores the attention mask differs by far more.
    """
    if not (rows.can_pad(one) and rows.can_pad(other)):
        return False
    short, long = sorted((one, other), key=token_count)
    with runner.forward_passes() as forward:
        alone, both = (
            forward(_batch(rows.arrange(values), len(values)))
            for values in ([short], [long, short])
        )
    for key, column in runner.columns.items():
        mine, padded = alone[key][0], both[key][1]
        if column.tokens is not None:
            padded = padded.narrow(column.tokens, 0, token_count(short))
        if not _close(mine, padded, runner.autocast):
            log.info("batches: texts of one length each, because padding changes %s", key)
            return False
    return True


def _batch(value: Any, rows: int) -> RowBatch:
    return RowBatch(range(rows), value, ({},) * rows, (), token_count(value))


def _close(mine: Tensor, padded: Tensor, autocast: torch.dtype | None) -> bool:
    if not (mine.is_floating_point() or mine.is_complex()):
        return torch.equal(mine, padded)
    tolerance = torch.finfo(autocast or mine.dtype).eps ** 0.5
    finite = mine[mine.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(mine, padded, rtol=0, atol=tolerance * largest, equal_nan=True)


@dataclass(frozen=True)
class ExtractionPlan:
    """What a run over a dataset will do."""

    runner: BatchRunner
    sink: BatchSink
    read: Callable[[Iterable[Sequence[int]]], Generator[RowBatch]]
    batches: Callable[[Shard], Iterable[Sequence[int]]]
    batch: int
    shards: Sequence[Shard]
    settings: Plan
    coverage: Coverage


def check_devices(request: Request, options: ExtractOptions, group: ProcessGroup) -> None:
    """Check that ``--device-map`` can be used with the processes and the other options."""
    if request.run.device_map is not None and group.local_world > 1:
        raise RequestError(
            f"--device-map spreads the model over all devices of a machine, and {group.local_world}"
            " processes run on this one.",
            "Start one process on each machine, or leave out --device-map.",
        )
    if request.run.device_map is not None and options.channels_last:
        raise RequestError(
            "--channels-last cannot be combined with --device-map: offloaded weights lose their"
            " memory format.",
            "Leave out one of them.",
        )


def plan_extraction(
    request: Request, options: ExtractOptions, group: ProcessGroup
) -> ExtractionPlan:
    """Prepare the model and the rows, and plan the run."""
    inputs, specs, digest = _inputs(request, options)
    run = request.run
    if run.device == "cuda" and group.world > 1:  # one GPU for each process of a machine
        run = replace(run, device=f"cuda:{group.local_rank}")
    prepared, rows = prepare_rows(replace(request, run=run), options, inputs)
    arrange, placeholder, total = rows.arrange, rows.placeholder, len(rows.dataset)
    texts = rows.dataset if isinstance(rows.dataset, TextRows) else None
    other = texts.other_length(placeholder) if texts else None
    probe = _probe(options, prepared, rows, other)
    length = token_count(placeholder) if texts and other is None else None
    sink = _sink(probe.columns, options.storing, _image_size(placeholder), length)
    if texts and any("positions" in entry for entry in sink.key_entries):
        texts.store_spans()
    runner = _runner(options, prepared, probe)
    row_bytes = sum(column.bytes_for(_TEXT_TOKENS) for column in probe.columns)
    loader_batch, in_order = None, False
    if isinstance(inputs, DatasetItems):
        loader_batch, in_order = inputs.batch, inputs.in_order
    limits = row_bytes, options.memory, total, prepared.device.type
    batch = options.batch or loader_batch or batch_size(arrange([placeholder]), *limits)
    shard_rows = shard_row_count(sink.row_bytes or row_bytes, batch, options.shard_size, total)
    chosen = {k: v for k, v in request.chosen(options).items() if k not in NOT_IN_PLAN}
    settings: Plan = {
        **_origin(prepared, chosen, runner),
        "keys": sink.key_entries,
        "inputs": _planned_inputs(specs, digest, rows, sink),
        "rows": total,
        "batch": batch,
        "shard_rows": shard_rows,
    }
    read = partial(
        load_batches,
        rows.dataset,
        collate=Collator(arrange, placeholder, token_count if texts else None),
        workers=0 if texts or in_order else worker_count(options.workers, group.local_world),
        pin=prepared.device.type == "cuda",
    )
    shards = plan_shards(total, shard_rows)
    batches: Callable[[Shard], Iterable[Sequence[int]]] = partial(Shard.batches, size=batch)
    if texts:
        padded = other is None or tolerates_padding(runner, texts, placeholder, other)
        most = None if options.batch else batch * _TEXT_TOKENS
        batches = partial(texts.batches, size=batch, most_tokens=most, padded=padded)
    return ExtractionPlan(runner, sink, read, batches, batch, shards, settings, probe.coverage)


def _inputs(
    request: Request, options: ExtractOptions
) -> tuple[DatasetInputs, list[str], str | None]:
    """The inputs, their specs, and the hash of their names, for texts also of their content."""
    input = request.input.input
    if (hub := hub_source(input)) is not None:
        return _hub_inputs(hub, options.every)
    if (sources := text_sources(input)) is not None:
        tables = [open_texts(source) for source in sources]
        content = "\n".join(f"{table.name(0)} {table.digest}" for table in tables)
        digest = hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()
        return TextDataset(tables, options.every), list(as_texts(input)), digest
    items = find_items(input, options.every, request.run.seed)
    if items is not None:
        return items, [items.name], None
    specs = list(as_texts(input or ()))
    entries = list_entries(specs, skip_bad=options.skip_bad)[:: options.every]
    # Names whose bytes are not UTF-8 contain surrogates, which are escaped.
    names = "\n".join(map(_identity, entries)).encode(errors="backslashreplace")
    return entries, specs, hashlib.sha256(names).hexdigest()


def _hub_inputs(source: HubSource, every: int) -> tuple[DatasetInputs, list[str], str]:
    """The images or texts of a split of a data set."""
    stream = HubStream(source)
    if not stream.is_image:
        return TextDataset([HubTexts(stream)], every), [source.spec], stream.digest
    numbers = range(0, len(stream), every)
    images = DatasetItems(
        HubImages(stream), source.spec, lambda call: call(), None, None, numbers, in_order=True
    )
    return images, [source.spec], stream.digest


def _identity(entry: InputEntry) -> str:
    """The name of an input, and its values of columns: a resumed run must have the same."""
    return "\t".join([entry.name, *(f"{name}={value}" for name, value in entry.columns)])


def _probe(
    options: ExtractOptions, prepared: Prepared, rows: PreparedRows, other: Any
) -> ShapeProbe:
    """Probe the layers; ``other`` is a text of another length than the placeholder, or None."""
    dtype = getattr(torch, prepared.dtype)

    def cast_inputs(count: int, value: Any = rows.placeholder) -> Any:
        return map_tensors(
            rows.arrange([value] * count),
            lambda path, t: t.to(dtype) if t.is_floating_point() else t,
        )

    texts = None
    if other is not None:
        lengths = token_count(rows.placeholder), token_count(other)
        texts = TextLengths(lengths[0], cast_inputs(FEW, other), lengths[1])
    first = map_tensors(cast_inputs(FEW), lambda path, tensor: tensor.to(prepared.device))
    with explain_forward_errors(replace(prepared, value=first, sources=({"spec": "rows"},))):
        return probe_shapes(
            prepared.module,
            prepared.layers,
            options.kinds,
            cast_inputs,
            seed=prepared.seed,
            autocast=_autocast(options),
            texts=texts,
        )


def _sink(
    columns: Sequence[RecordColumn],
    storage: StorageOptions,
    image: tuple[int, int] | None,
    length: int | None,
) -> BatchSink:
    if not columns:
        raise LayerError("The selected layers return no tensor.", "Select others with --layer.")
    if storage.stats_only:
        return ChannelStatisticsSink(columns, image)
    return RowSink(columns, storage, image, length)


def _planned_inputs(
    specs: list[str], digest: str | None, rows: PreparedRows, sink: BatchSink
) -> PlannedInputs:
    planned: PlannedInputs = {"specs": specs, "sha256": digest, "rows": len(rows.dataset)}
    if columns := rows.dataset.columns:
        planned["columns"] = columns
    if part := _visible_part(rows, sink):
        planned["visible_part"] = part
    return planned


def _visible_part(rows: PreparedRows, sink: BatchSink) -> VisiblePart | None:
    """What part of the images is seen, if positions in them may be asked for."""
    images = rows.dataset
    if not isinstance(images, ImageRows) or all(len(e["shape"]) != 3 for e in sink.key_entries):
        return None
    return find_visible_part(images.recipe.run, images.channels)


def _image_size(placeholder: Any) -> tuple[int, int] | None:
    """Height and width of the model's input, if it is an image."""
    image = isinstance(placeholder, Tensor) and placeholder.ndim > 2
    return (placeholder.shape[-2], placeholder.shape[-1]) if image else None


def _runner(options: ExtractOptions, prepared: Prepared, probe: ShapeProbe) -> BatchRunner:
    last = probe.last if options.stop and probe.last and probe.last[0] != ROOT else None
    return BatchRunner(
        module=prepared.module,
        layers=prepared.layers,
        kinds=frozenset(options.kinds),
        columns={column.record.key: column for column in probe.columns},
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


def _origin(prepared: Prepared, options: dict[str, Any], runner: BatchRunner) -> PlanOrigin:
    """Model and options, as plain values."""
    return {
        "command": "extract",
        "options": options,
        "model": model_identity(prepared.loaded),
        "seed": prepared.seed,
        "device": prepared.device.type,
        "dtype": prepared.dtype,
        "stopped_after": runner.last[0] if runner.last else None,
        "versions": versions(),
    }


def model_identity(loaded: LoadedModel) -> PlannedModel:
    """The manifest's entry of a model.

    ``state_blake3`` is None if ``blake3``, the hash of the file, covers all weights.
    ``code_sha256`` is None if the model was not built by a Python file.
    """
    digest = loaded.weights.blake3
    covered = digest and not loaded.weights.missing
    values = chain(loaded.module.named_parameters(), loaded.module.named_buffers())
    return {
        "spec": loaded.spec,
        "source": loaded.source,
        "weights": loaded.weights.name,
        "blake3": digest,
        "state_blake3": None if covered else hash_tensors(values),
        "code_sha256": sha256_of(parse_model(loaded.spec).path) if loaded.source == FILE else None,
    }
