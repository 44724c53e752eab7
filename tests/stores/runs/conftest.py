"""What the tests of run folders share: the information of a run, and writers of small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import Series
from tests.run_folders import plain_info

LOSS = Series("", "loss", "value")
Rows = Sequence[tuple[int, Mapping[Series, float]]]


def write_run(folder: Path, steps: Rows = (), layers: Rows = (), **info: Any) -> Path:
    """Write a run folder with these rows, each with its step."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(folder, plain_info(**{"steps": len(steps), **info}))
    for table, rows in (("steps", steps), ("layers", layers)):
        for step, values in rows:
            writer.add_row(table, step, step / 10, values)
    writer.flush()
    return folder
