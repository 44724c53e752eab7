"""A features folder written by hand, with safetensors' writer, which readers must understand.

It follows docs/datasets.md, and uses nothing of hookscope.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def write_features(
    folder: Path,
    tensors: Mapping[str, Tensor],
    shard_rows: int,
    scales: Mapping[str, Tensor] | None = None,
    skipped: Mapping[int, str] | None = None,
) -> Path:
    """Write tensors of the same number of rows; return the folder."""
    folder.mkdir(parents=True)
    rows = len(next(iter(tensors.values())))
    named = {**tensors, **{f"{key}.scale": scale for key, scale in (scales or {}).items()}}
    shards, places = [], {}
    for first in range(0, rows, shard_rows):
        last = min(first + shard_rows, rows)
        file = f"rows-{first:08d}.safetensors"
        parts = {f"{key}[{first}:{last}]": t[first:last].clone() for key, t in named.items()}
        document = json.dumps({"schema": 1, "rows": [first, last], "keys": list(named)})
        save_file(parts, folder / file, metadata={"hookscope": document})
        places |= dict.fromkeys(parts, file)
        data = (folder / file).read_bytes()
        digest = f"{zlib.crc32(data):08x}"
        told_of = {"file": file, "first": first, "rows": last - first}
        shards.append({**told_of, "bytes": len(data), "crc32": digest})
    keys = [
        {
            **{"key": key, "module": key.rpartition("/")[0], "type": "Linear", "call": 1},
            **{"what": key.rpartition("/")[2], "kind": "output", "shape": list(t.shape[1:])},
            **{"dtype": str(t.dtype)[6:], "reduce": None},
        }
        for key, t in tensors.items()
    ]
    manifest = {
        "schema": 1,
        "command": "extract",
        "options": {},
        "model": {"spec": "m.py:M", "source": "file", "weights": "random", "blake3": None},
        "inputs": {"specs": ["photos"], "rows": rows},
        "rows": rows,
        "batch": shard_rows,
        "shard_rows": shard_rows,
        "seed": 0,
        "device": "cpu",
        "dtype": "float32",
        "stopped_after": None,
        "versions": {"hookscope": "0"},
        "keys": keys,
        "shards": shards,
        "executed": [],
        "not_executed": [],
    }
    size = sum(tensor.nbytes for tensor in named.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "features.safetensors.index.json").write_text(json.dumps(index))
    with (folder / "inputs.jsonl").open("w", encoding="utf-8") as lines:
        for row in range(rows):
            bad = {"skipped": skipped[row]} if skipped and row in skipped else {}
            entry = {"row": row, "path": f"photos/{row}é.jpg", "bytes": 1, "sha256": "0", **bad}
            lines.write(json.dumps(entry, ensure_ascii=row % 2 == 0) + "\n")
    return folder


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor with a different number in every entry."""
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    return (numbers - 7).to(dtype)
