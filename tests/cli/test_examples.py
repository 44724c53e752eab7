"""The examples in the help run as they stand in a clone of the project."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hookscope.cli.commands import Command
from hookscope.cli.main import cli

EXAMPLES = [example.line for example in cli.examples] + [
    example.line
    for command in cli.commands.values()
    if isinstance(command, Command)
    for example in command.examples
]

# One process for all, since each of its own would spend seconds importing torch.
DRIVER = """
import contextlib, io, json, shlex, subprocess, sys
from hookscope.cli.main import main

for line in json.load(sys.stdin):
    if line.startswith("hookscope run "):  # once in a process: its script becomes __main__
        command = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(command, capture_output=True, text=True)
        print(json.dumps([done.returncode, done.stdout, done.stderr]))
        continue
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(shlex.split(line)[1:])
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture
def clone(tmp_path: Path, repo: Path) -> Path:
    """The part of the project that examples name, where a result does not litter it."""
    shutil.copy(repo / "img.png", tmp_path)
    shutil.copytree(repo / "sample_models", tmp_path / "sample_models")
    return tmp_path


def faults_of(lines: list[str], folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run the lines; return those that do not do what an example should, and why."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(lines),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for line, answer in zip(lines, done.stdout.splitlines(), strict=True):
        status, out, err = json.loads(answer)
        program, command, *_ = shlex.split(line)
        wrote = [said.split()[1] for said in err.splitlines() if said.startswith("wrote ")]
        files = [file for file in wrote if (folder / file).is_file()]
        fine = program == "hookscope" and status == 0 and out and "Warning" not in err
        makers = ("capture", "grads", "step", "ablate", "sweep", "cam", "lens", "report", "plot")
        makers += ("attribute",)
        makers += ("export", "filters")
        writes = command in makers and "--no-output" not in line
        writes = (
            writes
            or "--chrome" in line
            or (command in ("check", "similar", "probe", "top") and " -o " in line)
        )
        if not fine or len(files) != writes:
            found[line] = f"{status}: {err}"
    return found


@pytest.mark.slow
def test_all_examples_run_and_leave_the_samples_as_they_are(clone, repo, clean_environment) -> None:
    assert faults_of(EXAMPLES, clone, clean_environment) == {}
    for path in (repo / "sample_models").rglob("*.*"):
        if path.is_file() and "__pycache__" not in path.parts:
            copy = clone / path.relative_to(repo)
            assert copy.read_bytes() == path.read_bytes(), path.name


def test_a_broken_example_is_noticed(clone, clean_environment) -> None:
    lines = ["hookscope help capture", "hookscope help --nonsense", "hookscop help"]
    assert list(faults_of(lines, clone, clean_environment)) == lines[1:]
