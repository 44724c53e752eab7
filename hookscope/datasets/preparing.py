"""What a run over a dataset needs before it begins: the model, the rows, how many at once."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookscope.datasets.decoding import decoder
from hookscope.datasets.listing import Entry
from hookscope.datasets.rows import ImageRows
from hookscope.errors import InputError, RequestError
from hookscope.inputs.images import decode
from hookscope.inputs.photos import recipe_for
from hookscope.inputs.reading import Asked
from hookscope.inputs.words import IMAGE_CHOICES
from hookscope.keywords import LOADING, several
from hookscope.prepare import Prepared, prepare
from hookscope.sources.loading import LIVE
from hookscope.tensors import as_call, walk

log = logging.getLogger("hookscope")

LARGEST_BATCH = 64  # beyond it a CPU gains nothing, and a GPU little
_QUEUED = 3  # batches of results at once: one under way and two that wait


def prepare_rows(
    given: Mapping[str, Any], entries: Sequence[Entry], device: str | None
) -> tuple[Prepared, ImageRows]:
    """The model on its device, and the rows read as its recipe says.

    The model is prepared with the first image that can be used: what it is given settles the rest.
    """
    selection = {name: several(given[name]) for name in ("layers", "types")}
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(
            given["model"],
            [_first_usable(entries, Path(folder), given["skip_bad"])],
            selection={**selection, "depth": given["depth"], "leaves": given["leaves"]},
            recipe={name: given[name] for name in IMAGE_CHOICES},
            loading={name: given[name] for name in LOADING},
            seed=given["seed"],
            dtype=given["dtype"],
            device=device,
            train=False,
        )
    assert prepared.recipe is not None
    if given["channels_last"]:
        if prepared.loaded.source == LIVE:
            raise RequestError(
                "channels_last would change the module that was given.",
                "Change it yourself first: model.to(memory_format=torch.channels_last)",
            )
        prepared.module.to(memory_format=torch.channels_last)
    side = max(max(t.shape[-2:]) for _, t in walk(as_call(prepared.value)))
    way = decoder(given["decode"], side)
    recipe = {name: given[name] for name in IMAGE_CHOICES}
    channels, _ = recipe_for(Asked(prepared.loaded, **recipe))
    return prepared, ImageRows(entries, prepared.recipe, channels, way)


def _first_usable(entries: Sequence[Entry], scratch: Path, skip_bad: bool) -> str:
    """A file with the first image that can be decoded: its own, or a copy of an archive's part."""
    for entry in entries:
        try:
            data = entry.read()
            decode(data, entry.name)
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


def blank_of(rows: ImageRows) -> Tensor:
    """Zeros in the place of the first row that can be used."""
    usable = next(row.value for row in (rows[i] for i in range(len(rows))) if row.value is not None)
    return torch.zeros_like(usable)


def batch_size(blank: Tensor, row_bytes: int, memory: int, rows: int) -> int:
    """The largest power of two whose results and inputs fit into ``memory``, by an estimate."""
    each = _QUEUED * row_bytes + 4 * blank.numel() * blank.element_size()
    size = 1
    while size * 2 <= min(LARGEST_BATCH, max(rows, 1)) and size * 2 * each <= memory:
        size *= 2
    if each > memory:
        raise RequestError(
            f"One input's results take {row_bytes:,} bytes, and a run holds {_QUEUED} times that:"
            f" more than --memory ({memory:,}).",
            "Choose fewer layers, or raise --memory.",
        )
    log.info("batch: %d, by --memory", size)
    return size


def workers_of(given: int | None, processes: int) -> int:
    """How many processes read for each of ``processes`` that run the model on this machine."""
    if given is not None:
        return given
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max((cores or 1) // processes - 1, 1)
