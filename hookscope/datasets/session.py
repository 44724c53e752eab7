"""One run over a dataset from the keywords to the finished folder, in one process or in several."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hookscope.datasets import manifest
from hookscope.datasets.folder import check_folder, clear
from hookscope.datasets.listing import Entry, list_entries
from hookscope.datasets.place import Place, place_of
from hookscope.datasets.planning import rows_in_shard, shards_of, share
from hookscope.datasets.preparing import batch_size, blank_of, prepare_rows, workers_of
from hookscope.datasets.probing import Probe, probe
from hookscope.datasets.ranks import Team, team
from hookscope.datasets.rows import Collator, batches_of
from hookscope.datasets.running import State, Work, run
from hookscope.datasets.shards import NAMES, Stored
from hookscope.errors import LayerError
from hookscope.keywords import several
from hookscope.module_tree import ROOT
from hookscope.prepare import Prepared
from hookscope.provenance import versions


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
    words = [os.fspath(word) for word in several(given["input"] or ())]
    resume = given["resume"] or here.restarted
    first = here.rank == 0
    if first:
        check_folder(place, resume=resume, force=given["force"])
    entries = list_entries(words)[:: given["every"]]
    prepared, rows = prepare_rows(given, entries, _device(given["device"], here))
    blank, arrange = blank_of(rows), prepared.loaded.arrange
    found = probe(prepared.module, prepared.layers, kinds, lambda count: arrange([blank] * count))
    stored = [Stored(c.record.key, c.shape, c.dtype) for c in found.columns]
    _demand_storable(stored)
    work = _work(given, prepared, found, kinds)
    row_bytes = sum(one.bytes for one in stored)
    size = given["batch"] or batch_size(blank, row_bytes, given["memory"], len(rows))
    shard_rows = rows_in_shard(row_bytes, size, given["shard_size"])
    plan = {
        **_origin(prepared, found, options, work),
        "inputs": {"words": words, "rows": len(rows), "sha256": _known_by(entries)},
        "rows": len(rows),
        "batch": size,
        "shard_rows": shard_rows,
    }
    if first and given["force"] and not resume:
        clear(place)
    done = here.agree(manifest.begin(place, plan) if first else set())
    mine = share(shards_of(len(rows), shard_rows), done, here.rank, here.world)
    batches = batches_of(
        rows,
        [batch for shard in mine for batch in shard.batches(size)],
        Collator(arrange, blank),
        workers_of(given["workers"], here.local_world),
        prepared.device.type == "cuda",
    )
    state = run(work, place, mine, batches, stored, progress)
    here.wait()
    told = here.agree(manifest.join(place, plan, found.coverage) if first else {})
    resumed = sum(shard["rows"] for shard in told["shards"] if shard["file"] in done)
    return Extraction(place, told, state, resumed, here)


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
        autocast=getattr(torch, given["autocast"]) if given["autocast"] else None,
        channels_last=given["channels_last"],
        skip_bad=given["skip_bad"],
    )


def _demand_storable(stored: Sequence[Stored]) -> None:
    if not stored:
        raise LayerError("The chosen layers give no tensor.", "Choose others with --layer.")
    for one in stored:
        if one.dtype not in NAMES:
            raise LayerError(
                f"{one.key} is of dtype {str(one.dtype)[6:]}, which shards do not hold.",
                "Leave the layer out.",
            )


def _known_by(entries: Sequence[Entry]) -> str:
    """A hash of the names of the inputs in their order."""
    return hashlib.sha256("\n".join(entry.name for entry in entries).encode()).hexdigest()


def _origin(
    prepared: Prepared, found: Probe, options: dict[str, Any], work: Work
) -> dict[str, Any]:
    """Model, options and keys, as plain values."""
    loaded = prepared.loaded
    told = ("key", "module", "type", "call", "what", "kind")
    keys = [
        {
            **{name: getattr(column.record, name) for name in told},
            "shape": list(column.shape),
            "dtype": str(column.dtype).removeprefix("torch."),
            "reduce": None,
        }
        for column in found.columns
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
        "seed": prepared.seed,
        "device": prepared.device.type,
        "dtype": prepared.dtype,
        "stopped_after": work.last[0] if work.last else None,
        "versions": versions(),
        "keys": keys,
    }
