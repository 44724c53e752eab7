"""One run over a dataset from the keywords to the finished folder."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookscope.datasets import manifest
from hookscope.datasets.decoding import decoder
from hookscope.datasets.folder import check_folder, clear
from hookscope.datasets.listing import Entry, list_entries
from hookscope.datasets.planning import rows_in_shard, shards_of, share
from hookscope.datasets.probing import Probe, probe
from hookscope.datasets.rows import Collator, ImageRows, batches_of
from hookscope.datasets.running import State, Work, run
from hookscope.datasets.shards import NAMES, Stored
from hookscope.errors import InputError, LayerError, RequestError
from hookscope.inputs.images import decode
from hookscope.keywords import LOADING, several
from hookscope.module_tree import ROOT
from hookscope.prepare import Prepared, prepare
from hookscope.provenance import versions
from hookscope.tensors import as_call, walk

log = logging.getLogger("hookscope")

LARGEST_BATCH = 64  # beyond it a CPU gains nothing, and a GPU little
_QUEUED = 3  # batches of results at once: one under way and two that wait


@dataclass(frozen=True)
class Extraction:
    """What a run over a dataset did.

    Attributes:
        folder: where the results are.
        manifest: what they are, as in its ``manifest.json``.
        state: how much this run did and where the time went.
        resumed: rows that an earlier run had done.
    """

    folder: Path
    manifest: dict[str, Any]
    state: State
    resumed: int

    @property
    def rows(self) -> int:
        """How many rows the folder holds."""
        return int(self.manifest["rows"])


def extract_into(
    folder: Path,
    given: Mapping[str, Any],
    options: dict[str, Any],
    kinds: set[str],
    progress: Callable[[State], None],
) -> Extraction:
    """Carry out what the keywords ``given`` of ``hookscope.extract`` ask for."""
    check_folder(folder, resume=given["resume"], force=given["force"])
    words = [os.fspath(word) for word in several(given["input"] or ())]
    entries = list_entries(words)[:: given["every"]]
    prepared, rows = _prepare(given, entries)
    blank = _blank(rows)
    arrange = prepared.loaded.arrange
    found = probe(prepared.module, prepared.layers, kinds, lambda count: arrange([blank] * count))
    stored = [Stored(c.record.key, c.shape, c.dtype) for c in found.columns]
    _demand_storable(found, stored)
    last = found.last if given["stop"] and found.last and found.last[0] != ROOT else None
    row_bytes = sum(one.bytes for one in stored)
    size = given["batch"] or _batch(blank, row_bytes, given["memory"], len(rows))
    shard_rows = rows_in_shard(row_bytes, size, given["shard_size"])
    plan = _plan(prepared, found, options, words, len(rows), (size, shard_rows), last)
    if given["force"] and not given["resume"] and folder.is_dir():
        clear(folder)
    done = manifest.begin(folder, plan)
    shards = shards_of(len(rows), shard_rows)
    left = share(shards, done, 0, 1)
    work = Work(
        module=prepared.module,
        layers=prepared.layers,
        kinds=frozenset(kinds),
        columns={column.record.key: column for column in found.columns},
        last=last,
        seed=prepared.seed,
        device=prepared.device,
        dtype=getattr(torch, prepared.dtype),
        autocast=getattr(torch, given["autocast"]) if given["autocast"] else None,
        channels_last=given["channels_last"],
        skip_bad=given["skip_bad"],
    )
    if given["channels_last"]:
        prepared.module.to(memory_format=torch.channels_last)
    batches = batches_of(
        rows,
        [batch for shard in left for batch in shard.batches(size)],
        Collator(arrange, blank),
        _workers(given["workers"]),
        prepared.device.type == "cuda",
    )
    state = run(work, folder, left, batches, stored, progress)
    told = manifest.join(folder, plan, found.coverage)
    return Extraction(folder, told, state, len(rows) - state.total)


def _prepare(given: Mapping[str, Any], entries: Sequence[Entry]) -> tuple[Prepared, ImageRows]:
    """The model on its device, and the rows read as its recipe says.

    The model is prepared with the first image that can be used: what it is given settles the rest.
    """
    selection = {name: several(given[name]) for name in ("layers", "types")}
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(
            given["model"],
            [_first_usable(entries, Path(folder), given["skip_bad"])],
            selection={**selection, "depth": given["depth"], "leaves": given["leaves"]},
            recipe={name: given[name] for name in ("preprocess", "size", "mean", "std")},
            loading={name: given[name] for name in LOADING},
            seed=given["seed"],
            dtype=given["dtype"],
            device=given["device"],
            train=False,
        )
    assert prepared.recipe is not None
    side = max(max(t.shape[-2:]) for _, t in walk(as_call(prepared.value)))
    way = decoder(given["decode"], side)
    return prepared, ImageRows(entries, prepared.recipe, prepared.channels, way)


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


def _blank(rows: ImageRows) -> Tensor:
    """Zeros in the place of the first row that can be used."""
    usable = next(row.value for row in (rows[i] for i in range(len(rows))) if row.value is not None)
    return torch.zeros_like(usable)


def _batch(blank: Tensor, row_bytes: int, memory: int, rows: int) -> int:
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


def _demand_storable(found: Probe, stored: Sequence[Stored]) -> None:
    if not stored:
        raise LayerError("The chosen layers give no tensor.", "Choose others with --layer.")
    for one in stored:
        if one.dtype not in NAMES:
            raise LayerError(
                f"{one.key} is of dtype {str(one.dtype)[6:]}, which shards do not hold.",
                "Leave the layer out.",
            )


def _plan(
    prepared: Prepared,
    found: Probe,
    options: dict[str, Any],
    words: Sequence[str],
    rows: int,
    sizes: tuple[int, int],
    last: tuple[str, int] | None,
) -> dict[str, Any]:
    """Everything that the bytes depend on."""
    loaded = prepared.loaded
    keys = [
        {
            **{name: getattr(c.record, name) for name in ("key", "module", "type", "call")},
            **{name: getattr(c.record, name) for name in ("what", "kind")},
            "shape": list(c.shape),
            "dtype": str(c.dtype).removeprefix("torch."),
            "reduce": None,
        }
        for c in found.columns
    ]
    return {
        "command": "capture",
        "options": options,
        "model": {
            "word": loaded.word,
            "source": loaded.source,
            "weights": loaded.weights.word,
            "sha256": loaded.weights.sha256,
        },
        "inputs": {"words": list(words), "rows": rows},
        "rows": rows,
        "batch": sizes[0],
        "shard_rows": sizes[1],
        "seed": prepared.seed,
        "device": str(prepared.device),
        "dtype": prepared.dtype,
        "stopped_after": last[0] if last else None,
        "versions": versions(),
        "keys": keys,
    }


def _workers(given: int | None) -> int:
    if given is not None:
        return given
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max((cores or 1) - 1, 1)
