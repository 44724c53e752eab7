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
from safetensors.torch import load_file

import hookscope
from hookscope.errors import EnvironmentFault, RequestError, StoreError

from .conftest import flip_last_bit
from .handwritten_features import ramp, write_features

TENSORS = {
    "ids/output": ramp(7, dtype=torch.int64),
    "conv/output": ramp(7, 3, 2),
    "bf/output": ramp(7, 4, dtype=torch.bfloat16),
    "half/output": ramp(7, 5, dtype=torch.float16),
    "flags/output": ramp(7, 3) > 0,
}
SCALE = torch.tensor([0.5, 1, 2, float("nan"), 0, 1e-3, 4])
BYTES = torch.arange(-7, 7, dtype=torch.int8).reshape(7, 2)
DEQUANTIZED = BYTES * SCALE[:, None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven rows in shards of three, and int8 rows with a scale."""
    values = {**TENSORS, "q/output": BYTES}
    return write_features(tmp_path / "features", values, 3, {"q/output": SCALE})


def wanted(key: str) -> np.ndarray:
    """What formats without bfloat16 have of a tensor."""
    tensor = TENSORS.get(key, DEQUANTIZED)
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


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
    assert torch.equal(plain["q/output"].nan_to_num(9), DEQUANTIZED.nan_to_num(9))
    for record in capture.records:
        tensor, stats = capture[record.key].double(), record.stats
        finite = tensor[tensor.isfinite()]
        assert (stats.min, stats.max) == (finite.min().item(), finite.max().item())
        assert stats.mean == pytest.approx(finite.mean().item())
        assert stats.nan == int(tensor.isnan().sum())
        assert record.shape == tuple(tensor.shape)
    assert capture.metadata["model"]["spec"] == "m.py:M"


@pytest.mark.parametrize("name", ["conv", "ids", "half", "flags", "bf", "q"])
def test_npy_is_one_array(folder: Path, tmp_path: Path, name: str) -> None:
    done = hookscope.export(folder, tmp_path / "a.npy", layers=name)
    found, expected = np.load(done.path, mmap_mode="r"), wanted(f"{name}/output")
    assert found.dtype == expected.dtype and found.flags.c_contiguous
    assert np.array_equal(found, expected, equal_nan=name == "q")


def test_npz_has_an_array_for_each_key(folder: Path, tmp_path: Path) -> None:
    done = hookscope.export(folder, tmp_path / "a.npz", layers=["conv", "bf", "flags", "q"])
    with np.load(done.path, allow_pickle=False) as found:
        assert found.files == [f"{name}/output" for name in ("conv", "bf", "flags", "q")]
        for key in found.files:
            assert found[key].dtype == wanted(key).dtype
            assert np.array_equal(found[key], wanted(key), equal_nan=key == "q/output")


@pytest.mark.parametrize("damage", [Path.unlink, flip_last_bit])
@pytest.mark.parametrize("ending", ["npy", "safetensors", "parquet"])
def test_a_damaged_shard_leaves_the_earlier_file(folder, tmp_path, ending, damage) -> None:
    path = tmp_path / f"a.{ending}"
    hookscope.export(folder, path, layers="conv")
    before = path.read_bytes()
    damage(folder / "rows-00000003.safetensors")
    with pytest.raises(StoreError, match="rows-00000003"):
        hookscope.export(folder, path, layers="bf")
    assert path.read_bytes() == before
    assert [file for file in tmp_path.iterdir() if not file.is_dir()] == [path]


REFUSED = [
    ("a.npy", ["conv", "bf"], "2 keys"),
    ("a.txt", "conv", r"\.safetensors, \.npy, \.npz"),
    ("a.npy", "cnov", "conv"),
    ("a.npy", "conv[0]", "slice"),
    ("features/b.npy", "conv", "among the files"),
]


@pytest.mark.parametrize(("name", "layers", "subject"), REFUSED)
def test_what_cannot_be_exported_is_told(folder, tmp_path, name, layers, subject) -> None:
    with pytest.raises(RequestError, match=subject):
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
for path in sys.argv[2:]:
    hookscope.export(sys.argv[1], path)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    tensor = torch.ones(1600, 1 << 15)  # 200 MiB
    folder = write_features(tmp_path / "f", {"a/output": tensor}, 100)
    paths = [str(tmp_path / f"a.{ending}") for ending in ("npy", "safetensors")]
    words = [sys.executable, "-c", PEAK, str(folder), *paths]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    assert int(done.stdout) < 80_000  # KiB


@pytest.mark.parametrize("block", [None, 64])
def test_a_row_an_input_with_path_and_lists(folder, tmp_path, monkeypatch, block) -> None:
    if block:  # several row groups
        monkeypatch.setattr("hookscope.stores.features.features_export.BLOCK", block)
    done = hookscope.export(folder, tmp_path / "a.parquet", layers=list(TENSORS))
    assert (parquet.ParquetFile(done.path).num_row_groups > 1) == bool(block)
    table = parquet.read_table(done.path)
    assert table.column_names == ["row", "path", *TENSORS]
    assert table["row"].to_pylist() == list(range(7))
    assert table["path"].to_pylist() == hookscope.load(folder).inputs.paths
    for key, tensor in TENSORS.items():
        expected, field = wanted(key), table.schema.field(key)
        assert json.loads(field.metadata[b"shape"]) == list(tensor.shape[1:])
        column = np.array(table[key].to_pylist())
        assert np.array_equal(column, expected.reshape(7, -1) if expected.ndim > 1 else expected)
        if expected.ndim > 1:
            assert field.type.list_size == expected[0].size
            assert field.type.value_type.to_pandas_dtype() == expected.dtype
    document = json.loads(table.schema.metadata[b"hookscope"])
    assert document["model"]["spec"] == "m.py:M"


UNFIT = {"complex": ramp(4, 2).to(torch.complex64), "3x0": torch.zeros(4, 3, 0)}


@pytest.mark.parametrize("subject", UNFIT)
def test_what_parquet_cannot_hold_is_refused(tmp_path: Path, subject: str) -> None:
    folder = write_features(tmp_path / "f", {"a/output": UNFIT[subject]}, 3)
    with pytest.raises(RequestError, match=subject):
        hookscope.export(folder, tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == [folder]


def test_without_pyarrow_the_extra_is_named(folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r"hookscope\[parquet\]"):
        hookscope.export(folder, tmp_path / "a.parquet")


def test_a_path_that_is_no_text_is_escaped(folder: Path, tmp_path: Path) -> None:
    lines = [{"row": n, "path": "photos/\udcff\\é.jpg" if n == 0 else "é.jpg"} for n in range(7)]
    (folder / "inputs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = hookscope.export(folder, tmp_path / "a.parquet", layers="conv")
    paths = parquet.read_table(done.path)["path"].to_pylist()
    assert paths == ["photos/\\udcff\\é.jpg", *["é.jpg"] * 6]


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
    """Give a features folder these columns, by hand."""
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


def plain_columns(path: Path) -> Any:
    with safetensors.safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["hookscope"]).get("columns")


def test_columns_of_numbers_are_tensors_and_the_rest_is_lists(folder, tmp_path: Path) -> None:
    path = hookscope.export(with_columns(folder, COLUMNS), tmp_path / "f.safetensors").path
    arrays = load_file(path)
    assert set(arrays) == {*TENSORS, "q/output", *COLUMN_DTYPES}
    assert torch.equal(arrays["conv/output"], TENSORS["conv/output"])  # not the column
    for name, dtype in COLUMN_DTYPES.items():
        stored = [np.nan if value is None else value for value in COLUMNS[name]]
        found = arrays[name].numpy()
        assert found.dtype == dtype
        assert np.array_equal(found, np.array(stored, dtype), equal_nan=dtype is np.float64)
    lists = {name: values for name, values in COLUMNS.items() if name not in COLUMN_DTYPES}
    assert plain_columns(path) == lists
    capture = hookscope.load(path)
    assert list(capture) == [*TENSORS, "q/output", *COLUMN_DTYPES]
    assert capture["class"].tolist() == COLUMNS["class"]
    assert capture.metadata["columns"]["label"] == COLUMNS["label"]
    [record] = [record for record in capture.records if record.key == "score"]
    assert record.kind == "column" and record.stats.nan == 1 and record.stats.max == 1e300
    again = hookscope.export(path, tmp_path / "g.safetensors", layers="conv").path
    assert plain_columns(again)["label"] == COLUMNS["label"]


def test_texts_that_are_too_long_for_a_header_are_left_out_with_a_warning(
    folder, tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hookscope.stores.features.features_export.HEADER_LIMIT", 5000)
    with_columns(folder, {"by": ["x" * 1000] * 7, "n": list(range(7))})
    path = hookscope.export(folder, tmp_path / "f.safetensors", layers="conv").path
    assert "by" in caplog.text
    assert load_file(path)["n"].tolist() == list(range(7))
    assert plain_columns(path) is None
