"""Generated photos, a small model that runs fast on them, and what is read of a folder by hand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.stores.features import folder, manifest, resumption
from hookscope.stores.features.location import parse_location
from tests import tiny_language

SMALL = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.relu(self.conv(x))
        x = self.relu(x - 0.1)
        return self.head(self.pool(x).flatten(1))

def example_input():
    return torch.zeros(1, 3, 16, 16)
"""


LINEAR = nn.Sequential(nn.Linear(4, 3)).requires_grad_(False)
SIX = TensorDataset(torch.rand(6, 4, generator=torch.Generator().manual_seed(0)))


def extract_six_rows(out: Path, model: Any = LINEAR, **more: Any) -> Any:
    """Run six rows through a linear layer, or another model, in shards of two."""
    more = {"layers": "0", "batch": 2, "shard_size": 1, "workers": 0, "input": SIX} | more
    return hookscope.extract(model, out, **more)


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.gpt2(tmp_path_factory.mktemp("gpt2"), padding_side="left")


@pytest.fixture
def photos(tmp_path) -> Path:
    """Twelve images, one of them a PNG, a text file, and a model in small.py beside the folder."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(12):
        pixels = random.integers(0, 255, (20, 30, 3), dtype=np.uint8)
        name = f"{i:02d}.png" if i == 5 else f"{i:02d}.jpg"
        Image.fromarray(pixels).save(folder / name)
    (folder / "notes.txt").write_text("no image")
    (tmp_path / "small.py").write_text(SMALL)
    return folder


def extract_photos(photos: Path, folder: Path | str, **more: Any) -> Any:
    """Run the small model over the photos, in three shards of four."""
    more = {"layers": ["relu", "head"], "batch": 4, "shard_size": 1, "workers": 0} | more
    more.setdefault("input", str(photos))
    return hookscope.extract(f"{photos.parent}/small.py:Small", folder, **more)


def leave_unfinished(out: Path, lost: int) -> None:
    """Turn a finished folder into one of a run interrupted before the shard of row ``lost``."""
    location = parse_location(out)
    document = folder.read_json(location, "manifest.json")
    finished = {"schema", "shards", "executed", "not_executed", "fitted"}
    resumption.start_run(
        location, {name: document[name] for name in document if name not in finished}
    )
    (out / manifest.part_name(lost)).unlink()
    (out / folder.shard_name(lost)).unlink()


def mount(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a size, as long as it is wanted."""
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        subprocess.run(line, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def contents(folder: Path) -> dict[str, bytes]:
    """The content of every file in a folder, by its relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def entries(out: Path) -> list[dict[str, Any]]:
    """The lines of the table of inputs."""
    return [json.loads(line) for line in (out / "inputs.jsonl").read_text().splitlines()]


def index_of(out: Path) -> dict[str, Any]:
    """The index of a folder, as safetensors defines it."""
    found: dict[str, Any] = json.loads((out / "features.safetensors.index.json").read_text())
    return found


def joined(out: Path, key: str) -> torch.Tensor:
    """All rows of a key, read with safetensors and the index only."""
    places = index_of(out)["weight_map"]
    own = [name for name in places if name.startswith(f"{key}[")]
    parts = []
    for name in sorted(own, key=lambda name: int(name[len(key) + 1 :].split(":")[0])):
        with safe_open(out / places[name], "pt") as file:
            parts.append(file.get_tensor(name))
    return torch.cat(parts)


def flip_last_bit(path: Path) -> None:
    """Damage a file without a change of its length."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
