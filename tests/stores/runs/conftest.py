"""What the tests of run folders share: the information of a run, and writers of small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookscope.stores.runs.run_info import RunInfo
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import Series

LOSS = Series("", "loss", "value")
Rows = Sequence[tuple[int, Mapping[Series, float]]]


def run_info(**changes: Any) -> RunInfo:
    """What a run of ``train.py`` says about itself while it goes on."""
    info: RunInfo = {
        "schema": 1,
        "status": "running",
        "script": "train.py",
        "arguments": ["--epochs", "3"],
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 0.0,
        "steps": 0,
        "exit_status": None,
        "every": None,
        "layers": [],
        "rank": 0,
        "world_size": 1,
        "versions": {"hookscope": "1"},
        "models": [],
        "optimizers": [],
        "unwatched": [],
        "incomplete": "",
    }
    info.update(changes)  # type: ignore[typeddict-item]
    return info


def model_info(name: str = "Net", layout: str = "whole", **layers: str) -> dict[str, Any]:
    """A model with some layers, from their names to their types."""
    entries = [{"name": layer, "type": kind} for layer, kind in layers.items()]
    return {"name": name, "type": name, "parameters": 9, "layers": entries, "layout": layout}


def write_run(folder: Path, steps: Rows = (), layers: Rows = (), **info: Any) -> Path:
    """Write a run folder with these rows, each with its step."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(folder, run_info(**{"steps": len(steps), **info}))
    for table, rows in (("steps", steps), ("layers", layers)):
        for step, values in rows:
            writer.add_row(table, step, step / 10, values)
    writer.flush()
    return folder
