"""``diff`` of two features folders, row by row, compared with numpy on whole arrays."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import hookscope
from hookscope.errors import RequestError
from hookscope.file_analysis import features_diff
from tests.extraction.handwritten_features import ramp, write_features


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Folders that differ in rows 3 and 8 of one of two keys; each has a key of its own."""
    tensors = {"a/output": ramp(10, 2, 3), "b/output": ramp(10, 4, dtype=torch.bfloat16)}
    tensors["b/output"][5, 1] = math.nan
    a = write_features(tmp_path / "a", {**tensors, "c/output": ramp(10)}, 4)
    changed = tensors["a/output"].clone()
    changed[3, 1, 2] += 0.5
    changed[8] *= 2
    b = write_features(tmp_path / "b", {**tensors, "a/output": changed, "d/output": ramp(10, 1)}, 3)
    return a, b


@pytest.mark.parametrize("block", [None, 60])
def test_rows_that_differ_are_counted_and_the_first_is_named(
    folders, monkeypatch, block: int | None
) -> None:
    if block:
        monkeypatch.setattr(features_diff, "BLOCK", block)
    found = hookscope.diff(*folders)
    x, y = (np.asarray(hookscope.load(one)["a"], np.float64) for one in folders)
    change, same = found.changes
    assert (change.key, change.rows_beyond, change.first_row) == ("a/output", 2, 3)
    assert change.measures.largest == np.abs(x - y).max()
    assert change.measures.distance == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(x))
    assert change.measures.changed == np.sum(x != y)
    assert (same.verdict, same.measures.nan_both, same.rows_beyond) == ("equal", 1, 0)
    assert (found.only_a, found.only_b, found.same) == (("c/output",), ("d/output",), False)


def test_tolerances_and_strict_decide_what_is_a_difference(folders) -> None:
    found = hookscope.diff(*folders, atol=0.5)
    assert (found.changes[0].rows_beyond, found.changes[0].first_row) == (1, 8)
    found = hookscope.diff(*folders, atol=0.5, rtol=1)
    assert found.same and found.changes[0].verdict == "close"
    assert not hookscope.diff(*folders, atol=0.5, rtol=1, strict=True).same


@pytest.mark.parametrize(
    ("words", "status"), [((), 1), (("--layer", "b"), 0), (("--atol", "100"), 0)]
)
def test_the_exit_status_is_that_of_diff_and_the_table_names_rows(
    folders, run, words, status: int
) -> None:
    done = run("diff", *folders, *words)
    assert done.rc == status, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert status == 0 or lines[1][-5:] == ["46", "2", "3", "differs", "-"]
    document = json.loads(run("diff", *folders, *words, "--json").stdout)
    assert document["same"] == (status == 0) and document["command"] == "diff"


@pytest.mark.parametrize(("rows", "key", "named"), [(9, "a", "10 rows"), (10, "e", "key")])
def test_what_cannot_be_compared_is_refused(folders, tmp_path: Path, rows, key, named) -> None:
    other = write_features(tmp_path / "other", {f"{key}/output": ramp(rows, 2, 3)}, 4)
    with pytest.raises(RequestError, match=named):
        hookscope.diff(folders[0], other)


def test_another_shape_is_a_difference(tmp_path: Path) -> None:
    a = write_features(tmp_path / "a", {"a/output": ramp(4, 2)}, 4)
    b = write_features(tmp_path / "b", {"a/output": ramp(4, 3)}, 4)
    found = hookscope.diff(a, b)
    assert not found.same and found.changes[0].measures is None
