"""Verification reports every kind of damage, and nothing for intact folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import hookscope
from hookscope.errors import RequestError, StoreError
from hookscope.stores.features.folder import write_json
from hookscope.stores.features.location import parse_location
from tests.conftest import REPO

from .handwritten_features import ramp, write_features

FIRST, SECOND = "rows-00000000.safetensors", "rows-00000003.safetensors"
INDEX, TABLE = "features.safetensors.index.json", "inputs.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {"a/output": ramp(8, 4), "b/output": torch.ones(8, 2, dtype=torch.int8)}
    return write_features(tmp_path / "features", tensors, 3, {"b/output": torch.ones(8)})


def test_a_sound_folder_is_sound(folder: Path) -> None:
    seen = []
    found = hookscope.verify(folder, progress=lambda *numbers: seen.append(numbers))
    assert (found.ok, found.rows, found.shards, found.damages) == (True, 8, 3, ())
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert hookscope.verify(REPO / "sample_models" / "features").ok


def rewrite(name: str, change: Callable[[dict], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value))

    return damage


def lose(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1])


def rows(*numbers: int) -> Callable[[Path], object]:
    lines = "".join(f'{{"row": {number}}}\n' for number in numbers)
    return lambda folder: (folder / TABLE).write_text(lines)


# What damages a folder, the file that is named, and what is said of it.
DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "gone": (lose(SECOND), SECOND, "missing"),
    "cut": (cut(SECOND), SECOND, "bytes"),
    "swapped": (lambda f: shutil.copy(f / FIRST, f / SECOND), SECOND, "checksum"),
    "stray": (lambda f: shutil.copy(f / FIRST, f / "rows-9.safetensors"), "rows-9.", "manifest"),
    "no index": (lose(INDEX), INDEX, "missing"),
    "index no JSON": (cut(INDEX), INDEX, "read"),
    "index leads astray": (
        rewrite(INDEX, lambda v: v["weight_map"].update({"a/output[0:3]": SECOND})),
        INDEX,
        "a/output[0:3]",
    ),
    "index too long": (
        rewrite(INDEX, lambda v: v["weight_map"].update({"c": SECOND})),
        INDEX,
        " c",
    ),
    "index too short": (
        rewrite(INDEX, lambda v: v["weight_map"].pop("b/output.scale[3:6]")),
        INDEX,
        "b/output.scale[3:6]",
    ),
    "index of another size": (
        rewrite(INDEX, lambda v: v["metadata"].update(total_size=1)),
        INDEX,
        "176 bytes",
    ),
    "no table": (lose(TABLE), TABLE, "missing"),
    "table cut": (cut(TABLE), TABLE, "line 8"),
    "line lost": (rows(0, 2), TABLE, "row 1"),
    "table short": (rows(0), TABLE, "1 lines for 8 rows"),
    "manifest forgets a shard": (
        rewrite("manifest.json", lambda v: v["shards"].pop(1)),
        "manifest.json",
        "3 to 6",
    ),
    "manifest forgets the last": (
        rewrite("manifest.json", lambda v: v["shards"].pop()),
        "manifest.json",
        "6 of 8",
    ),
    "manifest has other shapes": (
        rewrite("manifest.json", lambda v: v["keys"][0].update(shape=[5])),
        SECOND,
        "a/output[3:6]",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named(folder: Path, name: str) -> None:
    damage, file, problem = DAMAGES[name]
    damage(folder)
    found = hookscope.verify(folder)
    assert not found.ok
    assert any(one.file.startswith(file) and problem in one.problem for one in found.damages), found
    if name == "gone":  # a damaged shard is no damage of the index
        assert len(found.damages) == 1


def test_what_is_no_folder_of_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="contains no features"):
        hookscope.verify(tmp_path)
    write_json(parse_location(tmp_path), ".parts/plan.json", {"rows": 8})
    with pytest.raises(StoreError, match="0 of 8 rows"):
        hookscope.verify(tmp_path)
