"""Rows are in the folder of their run whatever happens; each run has a folder of its own."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookscope.errors import RequestError
from hookscope.stores.runs.row_blocks import block_files
from hookscope.stores.runs.run_folder import create_run_folder
from hookscope.stores.runs.run_info import RunEvent, read_info
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import TrainingRun
from tests.refusals import refused
from tests.run_folders import plain_info
from tests.stores.runs.conftest import LOSS, write_run

resource = pytest.importorskip("resource")  # which Windows does not have

# Writes rows until it is killed: in each the step, and a series that appears later.
WRITE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hookscope.stores.runs import run_writer
from hookscope.stores.runs.series import Series
from tests.run_folders import plain_info
run_writer.MAX_SECONDS = 0.0005  # many small files, merged often
writer = run_writer.RunWriter(Path(sys.argv[2]), plain_info())
for step in range(int(sys.argv[3])):
    values = {Series("", "loss", "value"): step * 0.5}
    values |= {Series("Net", f"fc{n}/output", "rms"): step + n for n in range(step // 5 % 30)}
    writer.add_row("steps", step, step / 100, values)
    print(step, flush=True)
writer.flush()
"""

names = st.integers(0, 12).map(lambda n: Series("Net", f"l{n}/output", "rms"))
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
actions = st.one_of(
    st.tuples(st.sampled_from(["steps", "layers"]), st.dictionaries(names, floats, min_size=1)),
    st.just("flush"),
)


def writing(folder: Path, repo: Path, steps: int) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", WRITE, str(repo), str(folder), str(steps)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], step: int) -> bool:
    """Read what the process prints up to a step; whether it came to it."""
    assert process.stdout is not None
    return any(int(line) == step for line in process.stdout)


def check_prefix(folder: Path) -> int:
    """Check that the rows of ``WRITE`` are the first ones, and return how many there are."""
    run = TrainingRun(folder)
    steps = run.steps.steps.tolist()
    assert steps == list(range(len(steps)))
    if steps:
        loss = run.curve("loss", "value")
        assert loss.steps.tolist() == steps and loss.values.tolist() == [s * 0.5 for s in steps]
    for series in run.steps.series[1:]:
        n = int(series.key.removeprefix("fc").removesuffix("/output"))
        curve = run.steps.curve(series)
        assert curve.steps.tolist() == [step for step in steps if step // 5 % 30 > n]
        assert curve.values.tolist() == [step + n for step in curve.steps]
    return len(steps)


@settings(max_examples=25)
@given(st.lists(actions, max_size=120))
def test_what_is_added_comes_back_bit_for_bit(tmp_path_factory, actions: list) -> None:
    folder = tmp_path_factory.mktemp("run")
    writer = RunWriter(folder, plain_info())
    added: dict[str, list[dict[Series, float]]] = {"steps": [], "layers": []}
    for action in actions:
        if action == "flush":
            writer.flush()
        else:
            table, values = action
            writer.add_row(table, len(added[table]), 0.5, values)
            added[table].append(values)
    writer.flush()
    run = TrainingRun(folder)
    for table, rows in ((run.steps, added["steps"]), (run.layers, added["layers"])):
        assert table.steps.tolist() == list(range(len(rows)))
        assert set(table.series) == {series for row in rows for series in row}
        for series in table.series:
            curve = table.curve(series)
            assert curve.steps.tolist() == [n for n, row in enumerate(rows) if series in row]
            expected = np.array([row[series] for row in rows if series in row], np.float32)
            assert curve.values.tobytes() == expected.tobytes()
    files = [file for table in ("steps", "layers") for file in block_files(folder, table)]
    assert len(files) == len(list(folder.glob("*.safetensors")))  # what was merged is gone


def test_files_stay_few_and_a_value_takes_little_more_than_four_bytes(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, plain_info())
    values = {Series("Net", f"layer{n}/output", "rms"): n / 7 for n in range(200)}
    for step in range(640):
        writer.add_row("layers", step, step, values)
    writer.flush()
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) <= 5
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert 4 < size / (640 * 200) < 4.3


def test_a_killed_process_leaves_the_first_rows(tmp_path: Path, repo: Path) -> None:
    for step in (3, 100):
        folder = tmp_path / str(step)
        folder.mkdir()
        with writing(folder, repo, 1_000_000) as process:
            wait_for(process, step)
            process.send_signal(signal.SIGKILL)
        assert read_info(folder)["status"] == "running"
        assert check_prefix(folder) >= step // 10


def test_a_run_is_read_while_another_process_writes_it(tmp_path: Path, repo: Path) -> None:
    counts = []
    with writing(tmp_path, repo, 400) as process:
        for step in range(24, 400, 25):
            wait_for(process, step)
            counts.append(check_prefix(tmp_path))
    assert counts == sorted(counts) and len(set(counts)) > 3
    assert check_prefix(tmp_path) == 400


@pytest.mark.exhaustive
def test_a_full_disk_ends_the_record_with_one_warning(tmp_path: Path, caplog) -> None:
    writer = RunWriter(tmp_path, plain_info())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with caplog.at_level(logging.WARNING, "hookscope"):
            for step in range(2_000):
                writer.add_row("steps", step, step, {LOSS: step, Series("", "step", "seconds"): 1})
                writer.flush()
            writer.add_event(RunEvent(5, "nonfinite", "forward", "Net", "fc", 1, "NaN."))
            writer.info["status"] = "finished"
            writer.write_run_info()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    [record] = caplog.records
    assert "File too large" in record.getMessage() and "script continues" in record.getMessage()
    run = TrainingRun(tmp_path)
    assert run.info["status"] == "finished" and "File too large" in run.info["incomplete"]
    assert writer.failed == run.info["incomplete"]
    assert run.steps.steps.tolist() == list(range(len(run.steps))) and 100 < len(run.steps) < 2_000


def test_a_disk_without_any_room_stops_nothing(tmp_path: Path, caplog) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        subprocess.run(line, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a file system")
    try:
        writer = RunWriter(disk, plain_info())
        for step in range(500):
            values = {Series("Net", f"l{n}/output", "rms"): n for n in range(20)}
            writer.add_row("layers", step, step, values)
            writer.flush()
        writer.write_run_info()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "No space left on device" in writer.failed
        rows = TrainingRun(disk).layers.steps.tolist()
        assert rows == list(range(len(rows))) and rows
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("pattern", ["*", "*.safetensors"])
def test_a_folder_that_is_emptied_ends_the_record(tmp_path: Path, caplog, pattern: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    writer = RunWriter(folder, plain_info())
    for step in range(5):  # four files are merged
        writer.add_row("steps", step, step, {LOSS: 1.0})
        writer.flush()
        for path in folder.glob(pattern):
            path.unlink()
        if pattern == "*" and step == 1:
            folder.rmdir()
    assert len(caplog.records) == 1 and writer.failed


def test_a_forked_process_writes_nothing(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, plain_info())
    writer.add_row("steps", 0, 0.0, {LOSS: 1.0})
    child = os.fork()
    if not child:
        try:
            writer.info["status"] = "failed"
            writer.add_row("steps", 1, 0.0, {Series("", "step", "seconds"): 2.0})
            writer.add_event(RunEvent(5, "nonfinite", "forward", "Net", "fc", 1, "NaN."))
            writer.flush()
            writer.write_run_info()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not list(tmp_path.glob("*.safetensors")) and not (tmp_path / "events.jsonl").exists()
    writer.flush()
    run = TrainingRun(tmp_path)
    assert (run.info["status"], len(run.steps), run.names) == ("running", 1, [LOSS])


def test_events_are_on_the_disk_at_once(tmp_path: Path) -> None:
    event = RunEvent(5, "nonfinite", "forward", "Net", "fc", 1, "NaN in fc.", "stopped.safetensors")
    RunWriter(tmp_path, plain_info()).add_event(event)
    assert TrainingRun(tmp_path).events == [event]
    assert json.loads((tmp_path / "events.jsonl").read_text()) == list(event)


RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
CREATE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from hookscope.stores.runs.run_folder import create_run_folder
print(ready := "ready", flush=True)
sys.stdin.readline()
print(create_run_folder("train.py", None, os.environ))
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def create_at_once(folder: Path, repo: Path, environments: list[dict[str, str]]) -> list[str]:
    """Create a folder in each of several processes at the same moment."""
    line = [sys.executable, "-c", CREATE, str(repo)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [
        subprocess.Popen(line, cwd=folder, env=env, text=True, **pipes) for env in environments
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate()[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outputs


def test_runs_of_a_script_are_numbered() -> None:
    folders = [create_run_folder("a/train.py", None, {}) for _ in range(3)]
    assert [str(folder) for folder in folders] == ["runs/train-1", "runs/train-2", "runs/train-3"]
    assert str(create_run_folder("mypackage.train", None, {})).startswith("runs/mypackage")


def test_processes_that_start_at_once_have_folders_of_their_own(tmp_path: Path, repo: Path) -> None:
    folders = create_at_once(tmp_path, repo, [{}] * 4)
    assert sorted(folders) == [f"runs/train-{n}" for n in range(1, 5)]


def test_ranks_that_start_at_once_find_one_folder(tmp_path: Path, repo: Path) -> None:
    for launch in (1, 2):  # a second launch with the same address
        environments = [
            {**RANK, "RANK": str(n), "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": str(launch)}
            for n in range(4)
        ]
        folders = create_at_once(tmp_path, repo, environments)
        assert sorted(folders) == [f"runs/train-{launch}/rank{n}" for n in range(4)]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["train-1", "train-2"]


def test_a_restart_and_a_second_launch_have_another_folder() -> None:
    first = create_run_folder("train.py", None, RANK)
    assert str(first) == "runs/train-1/rank0"
    assert str(create_run_folder("train.py", None, {**RANK, "RANK": "1"})) == "runs/train-1/rank1"
    restarted = {**RANK, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert str(create_run_folder("train.py", None, restarted)) == "runs/train-2/rank0"


def test_a_rank_that_is_no_number_is_none_of_torchrun() -> None:
    folder = create_run_folder("train.py", None, {"RANK": "colonel", "WORLD_SIZE": "many"})
    assert str(folder) == "runs/train-1"


@pytest.mark.parametrize("environ", [{}, RANK], ids=["alone", "rank"])
def test_a_folder_with_a_run_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    write_run(tmp_path / "old")
    with refused(RequestError, "old is not empty", hint="--output"):
        create_run_folder("train.py", "old", environ)


def test_a_named_folder_is_made_with_its_parents() -> None:
    assert create_run_folder("train.py", "new/one", {}) == Path("new/one")
    assert create_run_folder("train.py", "new/one", {}).is_dir()  # it is empty
    assert create_run_folder("train.py", "new/two", RANK) == Path("new/two/rank0")


def test_a_folder_that_cannot_be_made_is_an_error_with_a_repair(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with refused(RequestError, "runs", hint="--output"):
        create_run_folder("train.py", None, {})
