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

SECOND = "rows-00000003.safetensors"
INDEX = "features.safetensors.index.json"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = {"a/output": ramp(8, 4), "b/output": torch.ones(8, 2, dtype=torch.int8)}
    scales = {"b/output": torch.ones(8)}
    return write_features(tmp_path_factory.mktemp("v") / "features", tensors, 3, scales)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "features"))


def test_a_sound_folder_is_sound(folder: Path) -> None:
    seen = []
    found = hookscope.verify(folder, progress=lambda *numbers: seen.append(numbers))
    assert (found.ok, found.rows, found.shards, found.damages) == (True, 8, 3, ())
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_the_features_among_the_samples_are_sound() -> None:
    assert hookscope.verify(REPO / "sample_models" / "features").ok


def test_every_flipped_bit_is_noticed(folder: Path) -> None:
    path = folder / SECOND
    whole = path.read_bytes()
    for location in range(0, len(whole), 7):
        bytes_ = bytearray(whole)
        bytes_[location] ^= 1 << location % 8
        path.write_bytes(bytes_)
        found = hookscope.verify(folder)
        assert [damage.file for damage in found.damages] == [SECOND], location
    path.write_bytes(whole)
    assert hookscope.verify(folder).ok


def rewrite(folder: Path, name: str, change: Callable[[dict], object]) -> None:
    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "gone": (lambda f: (f / SECOND).unlink(), SECOND, "missing"),
    "cut": (lambda f: cut(f / SECOND), SECOND, "bytes instead of"),
    "swapped": (
        lambda f: shutil.copy(f / "rows-00000000.safetensors", f / SECOND),
        SECOND,
        "its checksum does not match",
    ),
    "stray": (
        lambda f: shutil.copy(f / SECOND, f / "rows-00000099.safetensors"),
        "rows-00000099.safetensors",
        "not listed in the manifest",
    ),
    "no index": (lambda f: (f / INDEX).unlink(), INDEX, "missing"),
    "index no JSON": (lambda f: cut(f / INDEX), INDEX, "Cannot read"),
    "index leads astray": (
        lambda f: rewrite(f, INDEX, lambda v: v["weight_map"].update({"a/output[0:3]": SECOND})),
        INDEX,
        "does not match the shards at a/output[0:3]",
    ),
    "index too long": (
        lambda f: rewrite(f, INDEX, lambda v: v["weight_map"].update({"c": SECOND})),
        INDEX,
        "does not match the shards at c",
    ),
    "index too short": (
        lambda f: rewrite(f, INDEX, lambda v: v["weight_map"].pop("b/output.scale[3:6]")),
        INDEX,
        "at b/output.scale[3:6]",
    ),
    "index of another size": (
        lambda f: rewrite(f, INDEX, lambda v: v["metadata"].update(total_size=1)),
        INDEX,
        "its total_size is 1, but the tensors in the shards have 176 bytes",
    ),
    "no table": (lambda f: (f / "inputs.jsonl").unlink(), "inputs.jsonl", "missing"),
    "table cut": (
        lambda f: cut(f / "inputs.jsonl"),
        "inputs.jsonl",
        "line 8 is not a complete entry",
    ),
    "line lost": (
        lambda f: (f / "inputs.jsonl").write_text('{"row": 0}\n{"row": 2}\n'),
        "inputs.jsonl",
        "line 2 is not a complete entry of row 1",
    ),
    "table short": (
        lambda f: (f / "inputs.jsonl").write_text('{"row": 0}\n'),
        "inputs.jsonl",
        "1 lines for 8 rows",
    ),
    "manifest forgets a shard": (
        lambda f: rewrite(f, "manifest.json", lambda v: v["shards"].pop(1)),
        "manifest.json",
        "rows 3 to 6 are in no shard",
    ),
    "manifest forgets the last": (
        lambda f: rewrite(f, "manifest.json", lambda v: v["shards"].pop()),
        "manifest.json",
        "its shards end at row 6 of 8",
    ),
    "manifest has other shapes": (
        lambda f: rewrite(f, "manifest.json", lambda v: v["keys"][0].update(shape=[5])),
        SECOND,
        "it has no a/output[3:6] of the shape",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named(folder: Path, name: str) -> None:
    damage, file, problem = DAMAGES[name]
    damage(folder)
    found = hookscope.verify(folder)
    assert not found.ok
    assert any(one.file == file and problem in one.problem for one in found.damages), found


def test_a_damaged_shard_is_no_damage_of_the_index(folder: Path) -> None:
    (folder / SECOND).unlink()
    assert [damage.file for damage in hookscope.verify(folder).damages] == [SECOND]


def test_what_is_no_folder_of_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"(?s)contains no features.*by 'hookscope extract'\.$"):
        hookscope.verify(tmp_path)
    write_json(parse_location(tmp_path), ".parts/plan.json", {"rows": 8})
    with pytest.raises(StoreError, match="incomplete: 0 of 8 rows"):
        hookscope.verify(tmp_path)


def test_the_status_tells_the_verdict(run, folder: Path, tmp_path: Path) -> None:
    done = run("verify", folder)
    assert (done.rc, done.stderr) == (0, "")
    assert done.stdout.startswith("Intact: 8 rows in 3 shards (")
    (folder / SECOND).unlink()
    cut(folder / "rows-00000006.safetensors")
    done = run("verify", folder)
    assert done.rc == 1
    lines = done.stdout.splitlines()
    assert lines[1].split() == [SECOND, "missing"]
    assert lines[2].startswith("rows-00000006.safetensors")
    assert lines[3].startswith("Damaged: 2 files of the folder (8 rows in 3 shards")
    assert "--resume" in done.stderr
    document = json.loads(run("verify", folder, "--json").stdout)
    assert (document["ok"], [one["file"] for one in document["damages"]]) == (
        False,
        [SECOND, "rows-00000006.safetensors"],
    )
    assert run("verify", tmp_path).rc == 2
    assert run("verify", tmp_path / "none").rc == 2


def test_show_summarizes_a_folder(run, folder: Path) -> None:
    done = run("show", folder)
    assert (done.rc, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:3]] == ["a", "b"]
    assert "8 rows from photos in 3 shards" in done.stdout
    assert "model.spec" in run("show", f"{folder}/", "-v").stdout
    document = json.loads(run("show", folder, "--json").stdout)
    assert document["features"]["rows"] == 8
    done = run("show", folder, "a")
    assert done.rc == 2
    assert f"hookscope export {folder} --layer a" in done.stderr
    assert run("show", folder, "--map").rc == 2
    assert "--count needs --map" in run("show", folder, "--count", "3").stderr
    assert "does not exist" in run("show", "nothing/").stderr
