"""Names of run folders: each run has its own, and all ranks of a launch find the same one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hookscope.errors import RequestError, StoreError
from hookscope.stores.runs.run_folder import create_run_folder
from tests.refusals import refused

from .conftest import write_run

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
    with refused(StoreError, "Cannot create the folder of the run", hint="--output"):
        create_run_folder("train.py", None, {})
