"""What a run over a dataset does, settled before its first row."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.datasets.fingerprint import identity
from hookscope.datasets.items import Items, items_of
from hookscope.datasets.keeping import Keep, KeepRows
from hookscope.datasets.listing import Entry, list_entries
from hookscope.datasets.planning import Shard, rows_in_shard, shards_of
from hookscope.datasets.preparing import batch_size, prepare_rows, workers_of
from hookscope.datasets.probing import Column, Probe, probe
from hookscope.datasets.ranks import Team
from hookscope.datasets.reductions import Storing, read_storing
from hookscope.datasets.rows import Collator, RowBatch, batches_of
from hookscope.datasets.running import Work
from hookscope.datasets.tallying import KeepStatistics
from hookscope.errors import LayerError, RequestError
from hookscope.keywords import several
from hookscope.module_tree import ROOT
from hookscope.prepare import Prepared
from hookscope.provenance import versions
from hookscope.tensors import map_tensors


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


def refuse_misfits(given: Mapping[str, Any], here: Team) -> Storing:
    """Refuse keywords that do not go together, before anything is done; return what is stored."""
    storing = read_storing(given["reduce"], given["store_dtype"], given["stats_only"])
    if given["device_map"] is not None and here.local_world > 1:
        raise RequestError(
            f"{here.local_world} processes of one machine would each spread the model over all its"
            " devices.",
            "Start one process on each machine, or leave out --device-map.",
        )
    if given["device_map"] is not None and given["channels_last"]:
        raise RequestError(
            "Weights that come and go keep no memory format: --channels-last does not go with"
            " --device-map.",
            "Leave out one of them.",
        )
    return storing


def settle(
    given: Mapping[str, Any],
    storing: Storing,
    options: dict[str, Any],
    kinds: set[str],
    here: Team,
) -> Job:
    """Settle what the keywords ``given`` of ``hookscope.extract`` ask for.

    Args:
        given: the keywords.
        storing: what is stored of each row.
        options: those that differ from the defaults and that the bytes depend on.
        kinds: ``output``, ``input``.
        here: this process among those of the run.

    Raises:
        ModelError, LayerError, InputError, RequestError: a word, a pattern or a file is wrong.
        ForwardError: the model itself raised.
    """
    inputs, told = _inputs(given)
    prepared, rows = prepare_rows(given, inputs, _device(given["device"], here))
    arrange, blank, total = rows.arrange, rows.blank, len(rows.each)
    found = _probe(given, prepared, kinds, lambda count: arrange([blank] * count))
    keep = _keep_of(found.columns, storing, _image(blank))
    work = _work(given, prepared, found, kinds)
    row_bytes = sum(column.bytes for column in found.columns)
    own = inputs.batch if isinstance(inputs, Items) else None
    limits = row_bytes, given["memory"], total, prepared.device.type
    size = given["batch"] or own or batch_size(arrange([blank]), *limits)
    shard_rows = rows_in_shard(keep.row_bytes or row_bytes, size, given["shard_size"], total)
    plan = {
        **_origin(prepared, options, work),
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
        workers=workers_of(given["workers"], here.local_world),
        pin=prepared.device.type == "cuda",
    )
    return Job(work, keep, read, size, shards_of(total, shard_rows), plan, found.coverage)


def _device(word: str | None, here: Team) -> str | None:
    """Of several processes on a machine each has a GPU of its own."""
    return f"cuda:{here.local_rank}" if word == "cuda" and here.world > 1 else word


def _inputs(given: Mapping[str, Any]) -> tuple[Sequence[Entry] | Items, dict[str, Any]]:
    """The inputs, and what the manifest tells of them."""
    items = items_of(given["input"], given["every"], given["seed"])
    if items is not None:
        return items, {"words": [items.word], "sha256": None}
    words = [os.fspath(word) for word in several(given["input"] or ())]
    entries = list_entries(words, skip_bad=given["skip_bad"])[:: given["every"]]
    return entries, {"words": words, "sha256": _known_by(entries)}


def _known_by(entries: Sequence[Entry]) -> str:
    """A hash of the names of the inputs in their order."""
    # Names that are no text in UTF-8 have something else in the place of their bytes.
    names = "\n".join(entry.name for entry in entries).encode(errors="backslashreplace")
    return hashlib.sha256(names).hexdigest()


def _probe(
    given: Mapping[str, Any],
    prepared: Prepared,
    kinds: set[str],
    blanks: Callable[[int], Any],
) -> Probe:
    dtype = getattr(torch, prepared.dtype)

    def call_of(count: int) -> Any:
        return map_tensors(
            blanks(count), lambda path, t: t.to(dtype) if t.is_floating_point() else t
        )

    return probe(
        prepared.module,
        prepared.layers,
        kinds,
        call_of,
        seed=prepared.seed,
        autocast=_autocast(given),
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


def _work(given: Mapping[str, Any], prepared: Prepared, found: Probe, kinds: set[str]) -> Work:
    last = found.last if given["stop"] and found.last and found.last[0] != ROOT else None
    return Work(
        module=prepared.module,
        layers=prepared.layers,
        kinds=frozenset(kinds),
        columns={column.record.key: column for column in found.columns},
        last=last,
        seed=prepared.seed,
        device=prepared.device,
        dtype=getattr(torch, prepared.dtype),
        autocast=_autocast(given),
        channels_last=given["channels_last"],
        skip_bad=given["skip_bad"],
    )


def _autocast(given: Mapping[str, Any]) -> torch.dtype | None:
    return getattr(torch, given["autocast"]) if given["autocast"] else None


def _origin(prepared: Prepared, options: dict[str, Any], work: Work) -> dict[str, Any]:
    """Model and options, as plain values."""
    return {
        "command": "capture",
        "options": options,
        "model": identity(prepared.loaded),
        "seed": prepared.seed,
        "device": prepared.device.type,
        "dtype": prepared.dtype,
        "stopped_after": work.last[0] if work.last else None,
        "versions": versions(),
    }
