"""One run over a dataset from the keywords to the finished folder, in one process or in several."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.datasets import manifest
from hookscope.datasets.components import fit_all, rows_to_fit
from hookscope.datasets.folder import FITTED, STATISTICS, check_folder, clear
from hookscope.datasets.items import Items, items_of
from hookscope.datasets.keeping import Keep, KeepRows
from hookscope.datasets.listing import Entry, list_entries
from hookscope.datasets.place import Place, place_of
from hookscope.datasets.planning import Shard, rows_in_shard, shards_of, share
from hookscope.datasets.preparing import batch_size, prepare_rows, workers_of
from hookscope.datasets.probing import Column, Probe, probe
from hookscope.datasets.ranks import Team, team
from hookscope.datasets.reductions import Storing, read_storing
from hookscope.datasets.rows import Collator, RowBatch, batches_of
from hookscope.datasets.running import Work, passes, run
from hookscope.datasets.state import State
from hookscope.datasets.tallying import KeepStatistics
from hookscope.errors import LayerError, RequestError
from hookscope.keywords import several
from hookscope.module_tree import ROOT
from hookscope.prepare import Prepared
from hookscope.provenance import versions
from hookscope.tensors import map_tensors

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

    place: Place
    manifest: dict[str, Any]
    state: State
    resumed: int
    team: Team

    def told(self) -> dict[str, Any]:
        """What this process did, as plain values; times in seconds."""
        state = self.state
        times = {f"waited_for_{name}": value for name, value in vars(state.times).items()}
        return {"rows_now": state.rows, "rows_skipped": state.skipped, **times}

    @property
    def rows(self) -> int:
        """How many rows the folder holds."""
        return int(self.manifest["rows"])


def extract_into(
    folder: str,
    given: Mapping[str, Any],
    options: dict[str, Any],
    kinds: set[str],
    progress: Callable[[State], None],
) -> Extraction:
    """Carry out what the keywords ``given`` of ``hookscope.extract`` ask for."""
    with team() as here:
        return _extract(place_of(folder), given, options, kinds, progress, here)


def _extract(
    place: Place,
    given: Mapping[str, Any],
    options: dict[str, Any],
    kinds: set[str],
    progress: Callable[[State], None],
    here: Team,
) -> Extraction:
    storing = read_storing(given["reduce"], given["store_dtype"], given["stats_only"])
    _refuse_misfits(given, here)
    resume = given["resume"] or here.restarted
    force = given["force"] and not here.restarted
    first = here.rank == 0
    if first:
        check_folder(place, resume=resume, force=force)
    inputs, told = _inputs(given)
    prepared, rows = prepare_rows(given, inputs, _device(given["device"], here))
    arrange, blank, total = rows.arrange, rows.blank, len(rows.each)
    found = _probe(given, prepared, kinds, lambda count: arrange([blank] * count))
    keep = _keep_of(found.columns, storing, _image(blank))
    work = _work(given, prepared, found, kinds)
    row_bytes = sum(column.bytes for column in found.columns)
    own = inputs.batch if isinstance(inputs, Items) else None
    size = given["batch"] or own or batch_size(arrange([blank]), row_bytes, given["memory"], total)
    shard_rows = rows_in_shard(keep.row_bytes or row_bytes, size, given["shard_size"], total)
    plan = {
        **_origin(prepared, options, work),
        "keys": keep.told,
        "inputs": {**told, "rows": total},
        "rows": total,
        "batch": size,
        "shard_rows": shard_rows,
    }
    if first and force:
        clear(place)
    done = here.agree(manifest.begin(place, plan) if first else set())
    shards = shards_of(total, shard_rows)
    if first and len(shards) < here.world:
        log.warning(
            "%d processes share %d shards of %d rows, so %d have nothing to do: make shards smaller"
            " (--shard-size, --batch)",
            *(here.world, len(shards), shard_rows, here.world - len(shards)),
        )
    if STATISTICS in done:
        done = {shard.name for shard in shards}
    read = partial(
        batches_of,
        rows.each,
        collate=Collator(arrange, blank),
        workers=workers_of(given["workers"], here.local_world),
        pin=prepared.device.type == "cuda",
    )
    if isinstance(keep, KeepRows) and keep.to_fit:
        if first and place.size(FITTED) is None:
            _fit(keep, work, place, read, Shard(0, total), size)
        here.wait()
        keep.take_fitted(place)
    mine = share(shards, done, here.rank, here.world)
    batches = read([batch for shard in mine for batch in shard.batches(size)])
    state = run(work, place, mine, batches, keep, progress)
    state.skipped = here.total(state.skipped)
    keep.warn()
    here.wait()
    whole = here.agree(manifest.join(place, plan, found.coverage, keep.gather) if first else {})
    resumed = sum(shard.rows for shard in shards if shard.name in done)
    return Extraction(place, whole, state, resumed, here)


def _inputs(given: Mapping[str, Any]) -> tuple[Sequence[Entry] | Items, dict[str, Any]]:
    """The inputs, and what the manifest tells of them."""
    items = items_of(given["input"], given["every"], given["seed"])
    if items is not None:
        return items, {"words": [items.word], "sha256": None}
    words = [os.fspath(word) for word in several(given["input"] or ())]
    entries = list_entries(words)[:: given["every"]]
    return entries, {"words": words, "sha256": _known_by(entries)}


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


def _fit(
    keep: KeepRows,
    work: Work,
    place: Place,
    read: Callable[[Sequence[range]], Iterable[RowBatch]],
    every: Shard,
    size: int,
) -> None:
    """Fit what is fitted to the first rows, in whole batches so that they give what they will."""
    numbers = sum(torch.Size(work.columns[key].shape).numel() for key in keep.to_fit)
    batches = list(every.batches(size))[: -(-rows_to_fit(numbers, every.rows) // size)]
    with passes(work) as give:
        fit_all(keep.to_fit, (_sound(give(batch), batch) for batch in read(batches)), place)


def _image(blank: Any) -> tuple[int, int] | None:
    """Height and width of the model's input, where it is an image."""
    image = isinstance(blank, Tensor) and blank.ndim > 2
    return (blank.shape[-2], blank.shape[-1]) if image else None


def _sound(tensors: dict[str, Tensor], batch: RowBatch) -> dict[str, Tensor]:
    """Without what blanks gave."""
    sound = [i for i in range(len(batch.rows)) if i not in batch.bad]
    return {key: tensor[sound] for key, tensor in tensors.items()} if batch.bad else tensors


def _refuse_misfits(given: Mapping[str, Any], here: Team) -> None:
    """Refuse what does not go with a model that is spread over devices."""
    if given["device_map"] is None:
        return
    if here.local_world > 1:
        raise RequestError(
            f"{here.local_world} processes of one machine would each spread the model over all its"
            " devices.",
            "Start one process on each machine, or leave out --device-map.",
        )
    if given["channels_last"]:
        raise RequestError(
            "Weights that come and go keep no memory format: --channels-last does not go with"
            " --device-map.",
            "Leave out one of them.",
        )


def _device(word: str | None, here: Team) -> str | None:
    """Of several processes on a machine each has a GPU of its own."""
    return f"cuda:{here.local_rank}" if word == "cuda" and here.world > 1 else word


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


def _known_by(entries: Sequence[Entry]) -> str:
    """A hash of the names of the inputs in their order."""
    # Names that are no text in UTF-8 have something else in the place of their bytes.
    names = "\n".join(entry.name for entry in entries).encode(errors="backslashreplace")
    return hashlib.sha256(names).hexdigest()


def _origin(prepared: Prepared, options: dict[str, Any], work: Work) -> dict[str, Any]:
    """Model and options, as plain values."""
    loaded = prepared.loaded
    return {
        "command": "capture",
        "options": options,
        "model": {
            "word": loaded.word,
            "source": loaded.source,
            "weights": loaded.weights.word,
            "sha256": loaded.weights.sha256,
        },
        "seed": prepared.seed,
        "device": prepared.device.type,
        "dtype": prepared.dtype,
        "stopped_after": work.last[0] if work.last else None,
        "versions": versions(),
    }
