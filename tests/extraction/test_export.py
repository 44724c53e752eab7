"""Features in one file: the values are those of the shards, and the file is complete or absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import hookscope
from hookscope.errors import RequestError, StoreError

from .handwritten_features import ramp, write_features

TENSORS = {
    "ids/output": ramp(7, dtype=torch.int64),
    "conv/output": ramp(7, 3, 2),
    "bf/output": ramp(7, 4, dtype=torch.bfloat16),
    "half/output": ramp(7, 5, dtype=torch.float16),
    "flags/output": ramp(7, 3) > 0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven rows in shards of three, and int8 rows with a scale."""
    values = {**TENSORS, "q/output": torch.arange(-7, 7, dtype=torch.int8).reshape(7, 2)}
    scales = {"q/output": torch.tensor([0.5, 1, 2, float("nan"), 0, 1e-3, 4])}
    return write_features(tmp_path / "features", values, 3, scales)


def dequantized() -> Tensor:
    scale = torch.tensor([0.5, 1, 2, float("nan"), 0, 1e-3, 4])
    return torch.arange(-7, 7).reshape(7, 2) * scale[:, None]


def test_one_safetensors_file_is_what_a_capture_would_be(folder: Path, tmp_path: Path) -> None:
    seen = []
    done = hookscope.export(
        folder, tmp_path / "all.safetensors", progress=lambda *n: seen.append(n)
    )
    assert done.bytes == done.path.stat().st_size
    assert seen[-1] == (42, 42)
    plain = load_file(done.path)
    capture = hookscope.load(done.path)
    assert list(capture) == [*TENSORS, "q/output"]
    for key, tensor in TENSORS.items():
        assert plain[key].dtype == capture[key].dtype == tensor.dtype
        assert torch.equal(plain[key], tensor)
    assert torch.equal(plain["q/output"].nan_to_num(9), dequantized().nan_to_num(9))
    for record in capture.records:
        tensor = capture[record.key].double()
        finite = tensor[tensor.isfinite()]
        stats = record.stats
        assert (stats.min, stats.max) == (finite.min().item(), finite.max().item())
        assert stats.mean == pytest.approx(finite.mean().item())
        assert stats.nan == int(tensor.isnan().sum())
        assert record.shape == tuple(tensor.shape)
    assert capture.metadata["model"]["spec"] == "m.py:M"


@pytest.mark.parametrize("name", ["conv", "ids", "half", "flags"])
def test_npy_is_one_array(folder: Path, tmp_path: Path, name: str) -> None:
    done = hookscope.export(folder, tmp_path / "a.npy", layers=name)
    found = np.load(done.path, mmap_mode="r")
    wanted = TENSORS[f"{name}/output"].numpy()
    assert found.dtype == wanted.dtype and found.flags.c_contiguous
    assert np.array_equal(found, wanted)


def test_npy_has_what_numpy_has_not_as_float32(folder: Path, tmp_path: Path) -> None:
    found = np.load(hookscope.export(folder, tmp_path / "a.npy", layers="bf").path)
    assert found.dtype == np.float32 and np.array_equal(found, ramp(7, 4).numpy())
    found = np.load(hookscope.export(folder, tmp_path / "a.npy", layers="q").path)
    assert np.array_equal(found, dequantized().numpy(), equal_nan=True)


def test_npz_has_an_array_for_each_key(folder: Path, tmp_path: Path) -> None:
    done = hookscope.export(folder, tmp_path / "a.npz", layers=["conv", "bf", "flags", "q"])
    with np.load(done.path, allow_pickle=False) as found:
        assert found.files == [f"{name}/output" for name in ("conv", "bf", "flags", "q")]
        for key in found.files[:3]:
            wanted = TENSORS[key]
            wanted = wanted.float() if wanted.dtype is torch.bfloat16 else wanted
            assert found[key].dtype == wanted.numpy().dtype
            assert np.array_equal(found[key], wanted.numpy())
        assert np.array_equal(found["q/output"], dequantized().numpy(), equal_nan=True)


def test_the_same_export_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for ending in ("safetensors", "npy", "npz"):
        paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
        for path in paths:
            hookscope.export(folder, path, layers="conv")
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_damaged_shard_leaves_the_earlier_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    hookscope.export(folder, path, layers="conv")
    before = path.read_bytes()
    (folder / "rows-00000003.safetensors").unlink()
    with pytest.raises(StoreError, match="rows-00000003"):
        hookscope.export(folder, path, layers="bf")
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir() if not file.is_dir()} == {"a.npy"}


@pytest.mark.parametrize(
    ("name", "layers", "message"),
    [
        ("a.npy", ["conv", "bf"], r"stores one array, but there are 2 keys"),
        (
            "a.txt",
            "conv",
            r"has the extension of an unsupported format.\nUse .safetensors, .npy, .npz or",
        ),
        ("a.npy", "cnov", "Did you mean conv"),
        ("a.npy", "conv[0]", "is followed by a slice"),
        ("features/b.npy", "conv", "would be among the files of"),
    ],
)
def test_what_cannot_be_exported_is_told(folder, tmp_path, name, layers, message) -> None:
    with pytest.raises(RequestError, match=message):
        hookscope.export(folder, tmp_path / name, layers=layers)
    assert not (tmp_path / name).exists()


# Not getrusage: a child's ru_maxrss starts from that of the process it was forked from.
PEAK = """
import sys
import hookscope
def peak():
    return int([line for line in open('/proc/self/status') if 'VmHWM' in line][0].split()[1])
hookscope.load(sys.argv[1])["a"][:1]
before = peak()
hookscope.export(sys.argv[1], sys.argv[2])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("ending", ["npy", "safetensors"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, ending: str) -> None:
    tensor = torch.ones(1600, 1 << 15)  # 200 MiB
    folder = write_features(tmp_path / "f", {"a/output": tensor}, 100)
    words = [sys.executable, "-c", PEAK, str(folder), str(tmp_path / f"a.{ending}")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    assert int(done.stdout) < 80_000  # KiB


def test_the_command_writes_the_file_and_says_so(run, folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    done = run("export", folder, "--layer", "conv", "-o", "conv.npy")
    assert done.rc == 0
    assert done.stdout.splitlines()[1].split() == ["conv/output", "7x3x2", "float32"]
    assert done.stderr == "wrote conv.npy (296 bytes)\n"
    assert np.array_equal(np.load(work / "conv.npy"), ramp(7, 3, 2).numpy())
    done = run("export", folder, "--json", "-q", "-l", "conv", "-l", "bf")
    document = json.loads(done.stdout)
    assert (done.stderr, document["file"]) == ("", "features.export.safetensors")
    assert [key["key"] for key in document["keys"]] == ["conv/output", "bf/output"]
    assert document["bytes"] == (work / document["file"]).stat().st_size
    done = run("show", document["file"])
    assert done.rc == 0 and "7x3x2" in done.stdout
    done = run("export", folder)
    assert "replacing an earlier file" in done.stderr


def test_the_command_replaces_no_foreign_file(run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for name in ("a.npy", "a.safetensors"):
        (tmp_path / "work" / name).write_text("mine")
        done = run("export", folder, "-l", "conv", "-o", name)
        assert done.rc == 2 and "--force" in done.stderr
        assert (tmp_path / "work" / name).read_text() == "mine"
    assert run("export", folder, "-l", "conv", "-o", "a.npy", "--force").rc == 0


@pytest.mark.parametrize("ending", ["npy", "safetensors", "parquet"])
def test_a_shard_with_other_bytes_is_not_exported(run, folder, tmp_path, ending) -> None:
    shard = folder / "rows-00000003.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    done = run("export", folder, "--layer", "conv", "-o", f"a.{ending}")
    assert (done.rc, done.stdout) == (2, "")
    assert f"The shard {shard.name} in {folder} is damaged" in done.stderr
    assert f"hookscope verify {folder}" in done.stderr
    assert not list((tmp_path / "work").iterdir())
