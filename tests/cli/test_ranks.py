"""Under torchrun, rank 0 alone does the work of a command that does not share it."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path

import pytest

from hookscope.specs.commands import COMMANDS
from tests.conftest import REPO, Run
from tests.processes import run_python
from tests.properties.conftest import Workplace, kept_sources, workplace  # noqa: F401
from tests.properties.declared_values import first_request

NAMES = [name for group in COMMANDS.values() for name in group]
LAUNCH = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
# The least request of each command that does not share its work; what needs long is exhaustive.
WORK = {
    name: first_request(name)
    for name in NAMES
    if name not in ("extract", "run", "lens", "attribute", "trace", "models", "probe")
}
DIGITS = f"{REPO}/sample_models/digits.py:trained"
IMAGE = ("--input", f"{REPO}/sample_models/five.png")


def ranked(rank: int) -> dict[str, str]:
    return {**LAUNCH, "RANK": str(rank), "LOCAL_RANK": str(rank)}


def test_each_command_says_whether_its_processes_share_the_work() -> None:
    commands = {
        name: getattr(importlib.import_module(f"hookscope.commands.{name}"), f"{name}_command")
        for name in NAMES
    }
    assert {name for name, each in commands.items() if each.shares_work} == {"extract", "run"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", WORK)
def test_rank_0_works_and_the_others_say_so_once(
    name: str,
    workplace: Workplace,  # noqa: F811
    run: Run,
) -> None:
    words = shlex.split(WORK[name])
    runs = []
    for env in ({}, ranked(0), ranked(1)):
        done = run(name, *words, cwd=workplace.folder, env=env)
        runs.append((done.rc, done.stdout, workplace.take_files()))
    assert runs[0] == runs[1]
    assert runs[2] == (0, "", {})
    [line] = done.stderr.splitlines()
    assert "rank 0" in line and name in line


@pytest.mark.parametrize("env", [{"RANK": "1"}, {"RANK": "one", "WORLD_SIZE": "2"}])
def test_other_variables_of_that_name_are_none_of_torchrun(env: dict[str, str], run: Run) -> None:
    assert "digits" in run("tree", DIGITS, env=env).stdout


def test_a_program_runs_in_each_rank(tmp_path: Path, run: Run) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os\nprint('rank', os.environ['RANK'])\n")
    for rank in (0, 1):
        assert f"rank {rank}" in run("run", "--list", program, env=ranked(rank)).stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="gloo and torchrun")
def test_two_processes_of_torchrun_write_one_file_once(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    words = ("-m", "hookscope", "capture", DIGITS, *IMAGE, "--layer", "fc", "-o", "a.safetensors")
    done = run_python(*launch, *words, cwd=tmp_path, env=clean_environment)
    assert done.rc == 0, done.stderr
    assert done.stdout.count("fc ") == 1
    assert done.stderr.count("wrote a.safetensors") == 1
    assert done.stderr.count("leaves this to rank 0") == 1
