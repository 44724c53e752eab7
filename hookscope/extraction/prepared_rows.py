"""What a run over a dataset prepares first: the model, the rows, the size of a batch."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import InputError, RequestError
from hookscope.execution.prepare import Prepared, find_model, prepare, with_tokenizer
from hookscope.extraction.item_rows import DatasetItems, ItemRows
from hookscope.extraction.row_batches import ImageRows, make_decoder
from hookscope.extraction.text_rows import TextDataset, TextRows
from hookscope.files.input_list import InputEntry
from hookscope.files.words import list_first
from hookscope.inputs.image_decoder import decode_image
from hookscope.inputs.image_input import resolve_recipe
from hookscope.inputs.input_checks import check_input
from hookscope.inputs.input_reader import Batch, ReadContext
from hookscope.inputs.text_input import text_recipe_of
from hookscope.inputs.text_tables import MAX_NAMES
from hookscope.sources.loaded import LoadedModel, Recipe
from hookscope.specs.choices import DECODINGS
from hookscope.specs.extract_options import ExtractOptions
from hookscope.specs.input_spec import reject_image_options
from hookscope.specs.model_spec import LIVE
from hookscope.specs.request import InputRequest, Request
from hookscope.tensors.nested import as_call, map_tensors, walk

log = logging.getLogger("hookscope")

DatasetInputs = Sequence[InputEntry] | DatasetItems | TextDataset
MAX_BATCH = 64  # larger batches make a GPU little faster
# Largest size of a batch's inputs on a CPU, in bytes: eight photos of 224 x 224. With 64 photos
# resnet18 took 1.4 times as long on two cores, and resnet50 2.3 times: more than the caches hold.
_CPU_INPUT_BYTES = 5 * 10**6
# Batches of results in memory at once: one from the model, two that wait, and one being written.
# With a GPU another one is being copied.
_BATCHES_IN_MEMORY = 4


@dataclass(frozen=True)
class PreparedRows:
    """The rows of a dataset, ready to be read."""

    dataset: ImageRows | ItemRows | TextRows
    placeholder: Any
    arrange: Callable[[Sequence[Any]], Any]


def prepare_rows(
    request: Request, options: ExtractOptions, inputs: DatasetInputs
) -> tuple[Prepared, PreparedRows]:
    """Return the model, prepared with the first usable input, and the rows read by its recipe."""
    if isinstance(inputs, DatasetItems):
        return _prepare_items(request, options, inputs)
    if isinstance(inputs, TextDataset):
        return _prepare_texts(request, options, inputs)
    if options.max_tokens is not None or request.input.tokenizer is not None:
        name = "--tokenizer" if options.max_tokens is None else "--max-tokens"
        raise InputError(f"{name} is for texts, and no text is given.", f"Leave out {name}.")
    with tempfile.TemporaryDirectory() as folder:
        first = [_first_usable(inputs, Path(folder), options.skip_bad)]
        prepared = _prepare_model(request, options, first)
    assert prepared.recipe is not None
    side = max(max(t.shape[-2:]) for _, t in walk(as_call(prepared.value)))
    channels, _ = _recipe(prepared.loaded, request.input)
    rows = ImageRows(inputs, prepared.recipe, channels, make_decoder(options.decode, side))
    return prepared, PreparedRows(rows, placeholder_row(rows), prepared.loaded.arrange)


def _prepare_items(
    request: Request, options: ExtractOptions, items: DatasetItems
) -> tuple[Prepared, PreparedRows]:
    if options.decode != DECODINGS[0]:
        raise RequestError(
            f"--decode is for image files, and {items.name} is not one.", "Leave out --decode."
        )
    loaded = find_model(request.model, request.run.seed)
    recipe = cache(partial(_recipe, loaded, request.input))
    rows = ItemRows(items, loaded, recipe, request.run.seed)
    first = rows.first(options.skip_bad)
    if not recipe.cache_info().currsize:
        reject_image_options(vars(request.input), f"{items.name} returns none")
    value = rows.arrange([first])
    check_input(loaded, value)
    _note_labels(rows, skip_bad=options.skip_bad)
    prepared = _prepare_model(request, options, Batch(value, (), ""), loaded)
    placeholder = map_tensors(first, lambda path, tensor: torch.zeros_like(tensor))
    return prepared, PreparedRows(rows, placeholder, rows.arrange)


def _note_labels(rows: ItemRows, *, skip_bad: bool) -> None:
    """Log what becomes of the labels. They are read once more: a collate function shows them."""
    if not rows.labelled:
        return
    rows.first(skip_bad)
    if rows.label_type:
        log.info(
            "input: the second element of each pair is ignored as a label: %s is neither a number"
            " nor a text",
            rows.label_type,
        )
    else:
        log.info("input: the second element of each pair is stored as its label")


def _prepare_texts(
    request: Request, options: ExtractOptions, texts: TextDataset
) -> tuple[Prepared, PreparedRows]:
    if options.decode != DECODINGS[0]:
        raise RequestError("--decode is for image files, and texts are given.", "Leave it out.")
    reject_image_options(vars(request.input), "texts are given")
    loaded = with_tokenizer(find_model(request.model, request.run.seed), request.input)
    rows = TextRows(texts, text_recipe_of(loaded), options.max_tokens)
    first = rows.first(options.skip_bad)
    check_input(loaded, first)
    for note in filter(None, (table.left_out for table in texts.tables)):
        log.info("input: %s", note)
    if rows.columns:
        log.info("input: also stored: %s", list_first(rows.columns, MAX_NAMES))
    prepared = _prepare_model(request, options, Batch(first, (), ""), loaded)
    return prepared, PreparedRows(rows, first, rows.arrange)


def _recipe(loaded: LoadedModel, input: InputRequest) -> tuple[int, Recipe]:
    return resolve_recipe(
        ReadContext(loaded, None, input.preprocess, input.size, input.mean, input.std)
    )


def _prepare_model(
    request: Request, options: ExtractOptions, first: Any, loaded: LoadedModel | None = None
) -> Prepared:
    request = replace(request, input=replace(request.input, input=first))
    prepared = prepare(request, loaded=loaded)
    if options.channels_last:
        if prepared.loaded.source == LIVE:
            raise RequestError(
                "channels_last would change the given module in place.",
                "Convert it first: model.to(memory_format=torch.channels_last)",
            )
        prepared.module.to(memory_format=torch.channels_last)
    return prepared


def _first_usable(entries: Sequence[InputEntry], scratch: Path, skip_bad: bool) -> str:
    """The path of the first image that can be decoded; a file of an archive is copied first."""
    for entry in entries:
        try:
            data = entry.read()
            decode_image(data, entry.name)
        except InputError:
            if not skip_bad:
                raise
            continue
        if entry.path == entry.name:
            return entry.path
        copy = scratch / Path(entry.name).name
        copy.write_bytes(data)
        return str(copy)
    raise InputError(f"None of the {len(entries)} inputs can be used.", "Check the files.")


def placeholder_row(rows: ImageRows) -> Tensor:
    """Zeros in the shape of the first row that can be used."""
    usable = next(row.value for row in (rows[i] for i in range(len(rows))) if row.value is not None)
    return torch.zeros_like(usable)


def batch_size(value: Any, row_bytes: int, memory: int, rows: int, device: str) -> int:
    """The largest power of two whose estimated results and inputs fit into ``memory``.

    It must not depend on the number of cores or processes: a run may be resumed with another one.
    """
    input_bytes = sum(tensor.nbytes for _, tensor in walk(as_call(value)))
    held = _BATCHES_IN_MEMORY + (device == "cuda")
    needed = held * row_bytes + 4 * input_bytes
    most = min(MAX_BATCH, max(rows, 1))
    if device == "cpu":
        most = min(most, _CPU_INPUT_BYTES // max(input_bytes, 1))
    size = 1
    while size * 2 <= most and size * 2 * needed <= memory:
        size *= 2
    if needed > memory:
        raise RequestError(
            f"The results of one input take {row_bytes:,} bytes, and a run needs {held} times that:"
            f" more than --memory ({memory:,}).",
            "Select fewer layers, or increase --memory.",
        )
    log.info("batch: %d (default)", size)
    return size


def worker_count(workers: int | None, processes: int) -> int:
    """Number of workers of each of the ``processes`` on this machine; ``workers`` if given."""
    if workers is not None:
        return workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max((cores or 1) // processes - 1, 1)
