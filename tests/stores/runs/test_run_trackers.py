"""The numbers of a run in wandb and MLflow, read from the files that their own packages write."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookscope
from hookscope.errors import EnvironmentFault, RequestError
from hookscope.stores.runs.run_trackers import _MetricNames
from hookscope.stores.runs.series import Series
from tests.conftest import Run
from tests.run_folders import model_info
from tests.stores.runs.conftest import LOSS, write_run

RMS = Series("Net", "fc/output", "rms")
WHOLE = Series("Net", "./output", "rms")
NORM = Series("Net", "fc/weight.grad", "norm")
STEPS = [(n, {LOSS: 1 / (n + 1)}) for n in range(5)]
LAYERS = [(0, {RMS: 0.1, NORM: 1e-30, WHOLE: math.nan}), (2, {RMS: math.inf}), (4, {RMS: -3.0})]
STARTED = 1767323045.0  # of write_run

# A file of wandb is a log of LevelDB (docs/log_format.md there) with records of wandb's protocol.
READ_WANDB = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
data, at, found, config, name = open(sys.argv[1], "rb").read(), 7, [], {}, None
content, exit_code = b"", None
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, length, kind = struct.unpack("<IHB", data[at:at + 7])
    content += data[at + 7:at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
        record, content = Record.FromString(content), b""
        if record.HasField("history"):
            items = record.history.item
            found.append({(i.key or i.nested_key[0]): json.loads(i.value_json) for i in items})
        if record.HasField("run"):
            config = {one.key: json.loads(one.value_json) for one in record.run.config.update}
            name = [record.run.project, record.run.entity, record.run.display_name]
        if record.HasField("exit"):
            exit_code = record.exit.exit_code
print(json.dumps([found, config, name, exit_code]))
"""
READ_MLFLOW = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient()
[run] = client.search_runs([client.get_experiment_by_name(sys.argv[1]).experiment_id])
histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
found = {k: [[m.step, m.timestamp, m.value] for m in ms] for k, ms in histories.items()}
about = [run.info.run_name, run.info.status, run.info.start_time, run.info.end_time]
print(json.dumps([found, run.data.params, about]))
"""

needs = {
    name: pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")
    for name in ("wandb", "mlflow")
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    net = model_info(fc="Linear")
    return write_run(
        tmp_path / "train-1",
        STEPS,
        LAYERS,
        models=[net],
        status="failed",
        exit_status=3,
        seconds=2.0,
    )


@pytest.fixture
def read(tmp_path: Path, clean_environment: dict[str, str]) -> Callable[..., Any]:
    def run_reader(script: str, argument: object, **env: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", script, str(argument)],
            env=clean_environment | env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    return run_reader


def offline(tmp_path: Path) -> dict[str, str]:
    return {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}


def in_folder(tmp_path: Path) -> dict[str, str]:
    uri = (tmp_path / "store").as_uri()
    return {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}


@pytest.mark.slow
@needs["wandb"]
def test_wandb_has_each_value_at_its_step(
    run: Run, read: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    done = run("export", folder, "-o", "wandb:lab/digits", "--json", env=offline(tmp_path))
    assert done.rc == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["series"], document["values"]) == (4, 10)
    [path] = Path(document["place"]).glob("*.wandb")
    rows, config, name, exit_code = read(READ_WANDB, path)
    assert name == ["digits", "lab", "train-1"] and exit_code == 3
    assert config["arguments"] == "--epochs 3" and config["model/Net"] == "Net"
    assert [row["_step"] for row in rows] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose([row["_timestamp"] for row in rows], STARTED + np.arange(5) / 10)
    found = {tag for row in rows for tag in row if not tag.startswith("_")}
    tags = {"loss.value": LOSS, "output.rms/Net/fc": RMS, "output.rms/Net/.": WHOLE}
    tags |= {"weight.grad.norm/Net/fc": NORM}
    assert found == set(tags)
    for tag, series in tags.items():
        values = [(row["_step"], np.float32(row[tag])) for row in rows if tag in row]
        expected = [(n, x[series]) for n, x in (*STEPS, *LAYERS) if series in x]
        assert [n for n, _ in values] == [n for n, _ in expected]
        np.testing.assert_array_equal(
            *(np.array([v for _, v in r], "f4") for r in (values, expected))
        )


@pytest.mark.exhaustive
@pytest.mark.slow
@needs["mlflow"]
def test_mlflow_has_each_value_at_its_step(
    run: Run, read: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    store = in_folder(tmp_path)
    done = run("export", folder, "-o", "mlflow:digits", env=store)
    assert done.rc == 0, done.stderr
    assert done.stdout == "10 values of 4 series.\n"
    assert f"wrote the run train-1 to mlflow:digits ({store['MLFLOW_TRACKING_URI']})" in done.stderr
    found, parameters, about = read(READ_MLFLOW, "digits", **store)
    started = int(STARTED * 1000)
    assert about == ["train-1", "FAILED", started, started + 2000]
    assert parameters["arguments"] == "--epochs 3" and parameters["model/Net"] == "Net"
    names = {"loss.value/_run": LOSS, "output.rms/Net/fc": RMS, "output.rms/Net/_model": WHOLE}
    names |= {"weight.grad.norm/Net/fc": NORM}
    assert set(found) == set(names)
    for name, series in names.items():
        rows = [(n, x[series]) for n, x in (*STEPS, *LAYERS) if series in x]
        values = sorted(found[name], key=lambda row: row[0])
        assert [row[:2] for row in values] == [[n, started + 100 * n] for n, _ in rows]
        numbers = [row[2] for row in values]
        np.testing.assert_array_equal(np.array(numbers, "f4"), np.array([x for _, x in rows], "f4"))


@pytest.mark.exhaustive
@pytest.mark.slow
@needs["mlflow"]
def test_more_values_than_mlflow_takes_at_once_all_arrive(
    run: Run, read: Callable[..., Any], tmp_path: Path
) -> None:
    rows = [
        (n, {Series("Net", f"fc{k}/output", "rms"): n + k for k in range(30)}) for n in range(40)
    ]
    folder, store = write_run(tmp_path / "long", (), rows), in_folder(tmp_path)
    assert run("export", folder, "-o", "mlflow:digits", env=store).rc == 0
    found, *_ = read(READ_MLFLOW, "digits", **store)
    values = {name: [row[2] for row in sorted(rows)] for name, rows in found.items()}
    assert values == {f"output.rms/Net/fc{k}": [n + k for n in range(40)] for k in range(30)}


@pytest.mark.slow
@needs["wandb"]
def test_wandb_without_a_login_says_how_to_write_to_a_folder(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    env = {
        "WANDB_DIR": str(tmp_path),
        "WANDB_BASE_URL": "http://127.0.0.1:1",
        "WANDB_API_KEY": None,
    }
    done = run("export", folder, "-o", "wandb:digits", env=env)
    assert (done.rc, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: wandb ")
    assert "WANDB_MODE=offline" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_without_its_package_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    for name in (tracker, f"{tracker}.entities"):
        monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    with pytest.raises(EnvironmentFault, match=rf'pip install "hookscope\[{tracker}\]"'):
        hookscope.export(folder, f"{tracker}:digits")


def test_names_in_mlflow_are_allowed_and_differ() -> None:
    names = _MetricNames()
    keys = ("a[0]/output", "a(0)/output", "./output", "_model/output", "a/b/output")
    found = [names.of(Series("Net", key, "rms")) for key in keys]
    assert found[:4] == [
        *("output.rms/Net/a_0_", "output.rms/Net/a_0__2"),
        *("output.rms/Net/_model", "output.rms/Net/_model_2"),
    ]
    assert found == [names.of(Series("Net", key, "rms")) for key in keys]
    assert len(set(found)) == len(keys)


def test_a_tracker_takes_runs_and_needs_a_name(folder: Path) -> None:
    with pytest.raises(RequestError, match="wandb"):
        hookscope.export("sample_models/features", "wandb:digits")
    with pytest.raises(RequestError, match="mlflow"):
        hookscope.export(folder, "mlflow:")
