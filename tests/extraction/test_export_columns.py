"""Columns of the rows in an exported safetensors file: tensors of numbers, and lists of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from safetensors.numpy import load_file

import hookscope
from tests.conftest import Run

from .handwritten_features import ramp, write_features

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
TENSORS = {"class": np.int64, "score": np.float64, "good": np.bool_}


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
    arrays = load_file(path)
    assert set(arrays) == {"fc/output", *TENSORS}
    assert np.array_equal(arrays["fc/output"], ramp(ROWS, 2).numpy())
    for name, dtype in TENSORS.items():
        stored = [np.nan if value is None else value for value in COLUMNS[name]]
        assert arrays[name].dtype == dtype
        assert np.array_equal(arrays[name], np.array(stored, dtype), equal_nan=dtype is np.float64)
    lists = {name: values for name, values in COLUMNS.items() if name not in TENSORS}
    assert plain_metadata(path)["columns"] == lists


def test_load_returns_columns_with_the_rows(tmp_path: Path) -> None:
    folder = with_columns(tmp_path / "f", COLUMNS)
    path = hookscope.export(folder, tmp_path / "f.safetensors").path
    capture = hookscope.load(path)
    assert list(capture) == ["conv/output", "fc/output", *TENSORS]
    assert capture["class"].tolist() == COLUMNS["class"]
    assert capture["conv/output"].dtype is torch.bfloat16
    assert capture.metadata["columns"]["label"] == COLUMNS["label"]
    [record] = [record for record in capture.records if record.key == "score"]
    assert record.kind == "column" and record.stats.nan == 1 and record.stats.max == 1e300


def test_the_same_export_twice_gives_the_same_bytes(tmp_path: Path) -> None:
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
    assert load_file(path)["n"].tolist() == list(range(ROWS))
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
