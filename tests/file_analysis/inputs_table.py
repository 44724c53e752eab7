"""The table of the inputs of a features folder, changed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def change_inputs(folder: Path, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Set values of some rows; a value of None takes a name away."""
    table = folder / "inputs.jsonl"
    entries = [json.loads(line) for line in table.read_text("utf-8").splitlines()]
    for row, change in changes.items():
        merged = {**entries[row], **change}
        entries[row] = {name: value for name, value in merged.items() if value is not None}
    table.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), "utf-8")


def set_column(folder: Path, values: Iterable[Any], name: str = "label") -> None:
    """Store a value in each row, as ``extract`` does."""
    change_inputs(folder, {row: {name: value} for row, value in enumerate(values)})
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["inputs"]["columns"] = [name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
