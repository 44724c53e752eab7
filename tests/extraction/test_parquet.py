"""Features as a Parquet table, read by pyarrow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

import hookscope
from hookscope.errors import EnvironmentFault, RequestError

from .handwritten_features import ramp, write_features


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
