"""Features in one file: the values are those of the shards, and the file is complete or absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from pyarrow import parquet
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file
from torch import Tensor

import hookscope
from hookscope.errors import EnvironmentFault, RequestError, StoreError
from tests.conftest import Run

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


@pytest.mark.parametrize("block", [None, 64])
def test_a_row_an_input_with_path_and_lists(tmp_path: Path, monkeypatch, block) -> None:
    if block:  # several row groups
        monkeypatch.setattr("hookscope.stores.features.features_export.BLOCK", block)
    tensors = {
        "conv/output": ramp(7, 3, 2),
        "bf/output": ramp(7, 4, dtype=torch.bfloat16),
        "half/output": ramp(7, 5, dtype=torch.float16),
        "ids/output": ramp(7, dtype=torch.int64),
        "flags/output": ramp(7, 2) > 0,
    }
    folder = write_features(tmp_path / "f", tensors, 3)
    done = hookscope.export(folder, tmp_path / "a.parquet")
    assert (parquet.ParquetFile(done.path).num_row_groups > 1) == bool(block)
    table = parquet.read_table(done.path)
    assert table.column_names == ["row", "path", *tensors]
    assert table["row"].to_pylist() == list(range(7))
    assert table["path"].to_pylist() == hookscope.load(folder).inputs.paths
    for key, tensor in tensors.items():
        wanted = tensor.float().numpy() if key == "bf/output" else tensor.numpy()
        field = table.schema.field(key)
        assert json.loads(field.metadata[b"shape"]) == list(tensor.shape[1:])
        column = np.array(table[key].to_pylist())
        assert np.array_equal(column, wanted.reshape(7, -1) if wanted.ndim > 1 else wanted)
        if wanted.ndim > 1:
            assert field.type.list_size == wanted[0].size
            assert field.type.value_type.to_pandas_dtype() == wanted.dtype
    document = json.loads(table.schema.metadata[b"hookscope"])
    assert document["model"]["spec"] == "m.py:M"


def test_one_layer_alone(tmp_path: Path) -> None:
    folder = write_features(tmp_path / "f", {"a/output": ramp(4, 2), "b/output": ramp(4)}, 3)
    done = hookscope.export(folder, tmp_path / "a.parquet", layers="b")
    assert parquet.read_table(done.path)["b/output"].to_pylist() == [-7, -6, -5, -4]


def test_complex_numbers_have_no_place(tmp_path: Path) -> None:
    folder = write_features(tmp_path / "f", {"a/output": ramp(4, 2).to(torch.complex64)}, 3)
    with pytest.raises(RequestError, match="Parquet has no complex numbers"):
        hookscope.export(folder, tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == [folder]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    folder = write_features(tmp_path / "f", {"a/output": ramp(4, 2)}, 3)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r'pip install "hookscope\[parquet\]"'):
        hookscope.export(folder, tmp_path / "a.parquet")


def test_a_path_that_is_no_text_is_escaped(run, tmp_path: Path) -> None:
    folder = write_features(tmp_path / "f", {"a/output": ramp(2, 2)}, 2)
    lines = [{"row": 0, "path": "photos/\udcff\\é.jpg"}, {"row": 1, "path": "photos/é.jpg"}]
    (folder / "inputs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = run("export", folder, "-o", tmp_path / "a.parquet")
    assert done.rc == 0, done.stderr
    paths = parquet.read_table(tmp_path / "a.parquet")["path"].to_pylist()
    assert paths == ["photos/\\udcff\\é.jpg", "photos/é.jpg"]


def test_rows_without_a_number_are_refused(run, tmp_path: Path) -> None:
    folder = write_features(tmp_path / "f", {"a/output": torch.zeros(4, 3, 0)}, 2)
    done = run("export", folder, "-o", tmp_path / "a.parquet")
    assert (done.rc, done.stdout) == (2, "")
    assert "The rows of a/output have shape 3x0 and no values" in done.stderr


ROWS = 7
COLUMNS: dict[str, list[Any]] = {
    "label": ["cat", "dog", "", "café", "cat", "dog", "\u202e"],
    "class": [3, 1, 4, 1, 5, -9, 2**62 + 1],
    "score": [0.5, 1, 0.1, 2.5, None, -1.5, 1e300],
    "good": [True, False, True, True, False, True, True],
    "some": [True, None, False, None, None, None, None],
    "by": ["a", None, "b", None, None, None, None],
    "mixed": [1, "1", 2.5, None, True, 2**70, "x"],
    "large": [2**53 + 1, None, 1, 1, 1, 1, 1],
    "conv/output": [0, 1, 2, 3, 4, 5, 6],
}
COLUMN_DTYPES = {"class": np.int64, "score": np.float64, "good": np.bool_}


def with_columns(folder: Path, columns: dict[str, list[Any]]) -> Path:
    """A features folder of seven rows with these columns, written by hand."""
    values = {"conv/output": ramp(ROWS, 3, dtype=torch.bfloat16), "fc/output": ramp(ROWS, 2)}
    write_features(folder, values, 3)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["inputs"]["columns"] = list(columns)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    entries = [json.loads(line) for line in (folder / "inputs.jsonl").read_text().splitlines()]
    for name, stored in columns.items():
        for entry, value in zip(entries, stored, strict=True):
            entry |= {} if value is None else {name: value}
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / "inputs.jsonl").write_text(lines)
    return folder


def plain_metadata(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, framework="numpy") as file:
        found: dict[str, Any] = json.loads(file.metadata()["hookscope"])
    return found


def test_numbers_are_tensors_and_the_rest_is_lists(tmp_path: Path) -> None:
    folder = with_columns(tmp_path / "f", COLUMNS)
    path = hookscope.export(folder, tmp_path / "f.safetensors", layers="fc").path
    arrays = load_arrays(path)
    assert set(arrays) == {"fc/output", *COLUMN_DTYPES}
    assert np.array_equal(arrays["fc/output"], ramp(ROWS, 2).numpy())
    for name, dtype in COLUMN_DTYPES.items():
        stored = [np.nan if value is None else value for value in COLUMNS[name]]
        assert arrays[name].dtype == dtype
        assert np.array_equal(arrays[name], np.array(stored, dtype), equal_nan=dtype is np.float64)
    lists = {name: values for name, values in COLUMNS.items() if name not in COLUMN_DTYPES}
    assert plain_metadata(path)["columns"] == lists


def test_load_returns_columns_with_the_rows(tmp_path: Path) -> None:
    folder = with_columns(tmp_path / "f", COLUMNS)
    path = hookscope.export(folder, tmp_path / "f.safetensors").path
    capture = hookscope.load(path)
    assert list(capture) == ["conv/output", "fc/output", *COLUMN_DTYPES]
    assert capture["class"].tolist() == COLUMNS["class"]
    assert capture["conv/output"].dtype is torch.bfloat16
    assert capture.metadata["columns"]["label"] == COLUMNS["label"]
    [record] = [record for record in capture.records if record.key == "score"]
    assert record.kind == "column" and record.stats.nan == 1 and record.stats.max == 1e300


def test_the_same_columns_twice_give_the_same_bytes(tmp_path: Path) -> None:
    folder = with_columns(tmp_path / "f", COLUMNS)
    paths = [hookscope.export(folder, tmp_path / f"{n}.safetensors").path for n in "ab"]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_texts_that_are_too_long_for_a_header_are_left_out_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hookscope.stores.features.features_export.HEADER_LIMIT", 5000)
    folder = with_columns(tmp_path / "f", {"by": ["x" * 1000] * ROWS, "n": list(range(ROWS))})
    path = hookscope.export(folder, tmp_path / "f.safetensors", layers="fc").path
    assert "left out the columns by: their texts are too long" in caplog.text
    assert load_arrays(path)["n"].tolist() == list(range(ROWS))
    assert "columns" not in plain_metadata(path)


def test_show_names_the_columns_of_the_file(run: Run, tmp_path: Path) -> None:
    folder = with_columns(tmp_path / "f", {"label": ["cat"] * ROWS, "n": list(range(ROWS))})
    assert run("export", folder, "-o", "f.safetensors").rc == 0
    shown = run("show", "f.safetensors", "-v")
    assert shown.rc == 0 and "Stored beside the rows: n, label." in shown.stdout
    assert "cat, cat" not in shown.stdout
    numbers = run("show", "f.safetensors", "n", "--json")
    assert numbers.rc == 0 and '"max": 6' in numbers.stdout
    again = run("export", "f.safetensors", "--layer", "fc", "-o", "g.safetensors")
    assert again.rc == 0, again.stderr
    assert plain_metadata(tmp_path / "work" / "g.safetensors")["columns"]["label"] == ["cat"] * ROWS
    for command in (("report", "f.safetensors"), ("diff", "f.safetensors", "f.safetensors")):
        done = run(*command)
        assert done.rc == 0, done.stderr
