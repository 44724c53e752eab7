"""A capture of any size made at once: the file has a hole where the values would be."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

from bench.processes import HOOKSCOPE, Cost, pairs
from hookscope.files import strict_json
from hookscope.files.output_path import MARK
from hookscope.results.records import Record, Recording
from hookscope.results.stats import Stats
from hookscope.stores.capture_file import SCHEMA

LAYERS = 60
LARGE, SMALL = 4_000_000_000, 4_000_000  # bytes


def write(path: Path, size: int) -> None:
    """Write a capture of so many bytes, all of them zeros, in as many layers as resnet18 has."""
    entries = size // LAYERS // 4 // 100
    stats = Stats(entries * 100, 0.0, 0.0, 0.0, 0.0, 0.0, entries * 100, 0, 0)
    recording = Recording()
    table: dict[str, object] = {}
    for layer in range(LAYERS):
        key, start = f"layer{layer}/output", layer * entries * 400
        origin = (f"layer{layer}", "Conv2d", 1, "output", "output")
        recording._records[key] = Record(
            key, *origin, (entries, 100), "float32", "cpu", summary=partial(lambda: stats)
        )
        offsets = [start, start + entries * 400]
        table[key] = {"dtype": "F32", "shape": [entries, 100], "data_offsets": offsets}
    info = strict_json.dumps({"schema": SCHEMA, "command": "capture", **recording.to_info()})
    header = json.dumps({"__metadata__": {MARK: info}, **table}).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + LAYERS * entries * 400)


def showing(*words: str, count: int) -> list[tuple[Cost, Cost]]:
    """Run ``hookscope show FILE WORDS...`` on a large capture and on a small one, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder, "large"), Path(folder, "small")
        write(large, LARGE)
        write(small, SMALL)
        show = (*HOOKSCOPE, "show")
        return pairs((*show, str(large), *words), (*show, str(small), *words), count)
