"""A run folder read: curves, what is missing, what is damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hookscope.errors import MissingKeyError, ResultsFileError
from hookscope.files.output_path import is_run_folder
from hookscope.stores.runs.run_info import SERIES_FILE
from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import TrainingRun
from tests.stores.runs.conftest import LOSS, write_run

RMS = Series("Net", "fc/output", "rms")


def test_a_series_has_values_where_it_was_measured(tmp_path: Path) -> None:
    rows = [(0, {RMS: 1.0}), (1, {LOSS: 2.0}), (4, {RMS: math.nan, LOSS: math.inf})]
    run = TrainingRun(write_run(tmp_path, layers=rows))
    assert run.layers.series == (RMS, LOSS)
    curve = run.curve("fc/output", "rms")
    assert curve.steps.tolist() == [0, 4]
    assert curve.values[0] == 1 and math.isnan(curve.values[1])
    matrix = run.layers.matrix([LOSS, RMS])
    np.testing.assert_array_equal(matrix, [[np.nan, 1], [2, np.nan], [np.inf, np.nan]])


def test_a_run_without_rows_is_read(tmp_path: Path) -> None:
    run = TrainingRun(write_run(tmp_path))
    assert (len(run.steps), len(run.layers), run.names, run.events) == (0, 0, [], [])
    assert "running, 0 steps, 0 series" in repr(run)


def test_a_missing_series_has_near_names(tmp_path: Path) -> None:
    both = {RMS: 1.0, Series("Other", "fc/output", "rms"): 2.0}
    run = TrainingRun(write_run(tmp_path, layers=[(0, both)]))
    with pytest.raises(MissingKeyError, match="no series fc/outptu rms") as caught:
        run.curve("fc/outptu", "rms")
    assert caught.value.hint == "Did you mean fc/output?"
    with pytest.raises(MissingKeyError, match="several series") as caught:
        run.curve("fc/output", "rms")
    assert caught.value.hint == "Add model='Net' or model='Other'."
    assert run.curve("fc/output", "rms", "Other").values.tolist() == [2.0]


def test_an_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path, [(0, {LOSS: 1.0})])
    with open(run / SERIES_FILE, "a") as file:
        file.write('["Net", "fc/ou')
    assert TrainingRun(run).names == [LOSS]


@pytest.mark.parametrize(
    "line", ["[1, 2]", '["a", "b", 3]', '"abc"', "{", "null", "[" * 9_999, "\udcff"], ids=str
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    run = write_run(tmp_path, [(0, {LOSS: 1.0})])
    for name in ("series.jsonl", "events.jsonl"):
        earlier = (run / name).read_bytes() if (run / name).exists() else b""
        (run / name).write_bytes(line.encode(errors="surrogateescape") + b"\n" + earlier)
        with pytest.raises(ResultsFileError, match=f"{name}, line 1"):
            TrainingRun(run)
        (run / name).write_bytes(earlier)


def test_rows_of_an_unknown_series_are_damage(tmp_path: Path) -> None:
    run = write_run(tmp_path, [(0, {LOSS: 1.0})])
    (run / SERIES_FILE).write_text("")
    with pytest.raises(ResultsFileError, match=r"series\.jsonl.* 0 lines"):
        _ = TrainingRun(run).steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "asleep"}, "status.*asleep"),
        ({"steps": "3"}, "steps"),
        ({"models": [{"name": "a"}]}, r"models\.0"),
        ({"schema": 2}, "2"),
    ],
    ids=str,
)
def test_damaged_information_is_named(tmp_path: Path, change: dict, message: str) -> None:
    path = write_run(tmp_path) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ResultsFileError, match=message):
        TrainingRun(tmp_path)


def test_a_run_folder_is_known_by_its_information(tmp_path: Path) -> None:
    assert not is_run_folder(tmp_path) and not is_run_folder(tmp_path / "none")
    assert is_run_folder(write_run(tmp_path / "a"))
    write_run(tmp_path / "b" / "rank0")
    assert is_run_folder(tmp_path / "b")
