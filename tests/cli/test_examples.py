"""The examples in the help run as they stand in a clone of the project."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hookscope.cli.commands import Command
from hookscope.cli.main import cli
from tests.processes import run_lines
from tools.warm_process import Finished, WarmProcess

THIRDS = 3
EXAMPLES = [
    example.line
    for command in (cli, *cli.commands.values())
    if isinstance(command, Command) or command is cli
    for example in command.examples
]


WRITE_ON_REQUEST = ("check", "fingerprint", "memory", "probe", "similar", "top", "trace")


def with_what_they_read(lines: list[str]) -> list[str]:
    """The lines, after the examples that write the files of ``trained`` that they read."""
    read = {
        command for line in lines for command in re.findall(r"trained\.(\w+)\.safetensors", line)
    }
    starts = tuple(f"hookscope {command} sample_models/digits.py:trained" for command in read)
    return list(dict.fromkeys([*(line for line in EXAMPLES if line.startswith(starts)), *lines]))


def faults_of(
    lines: list[str], folder: Path, environment: dict[str, str], warm: WarmProcess
) -> dict[str, str]:
    """Run the lines, and those that they suggest as the next; return what is wrong with which."""
    followed: dict[str, Finished] = {}
    all_done = run_lines(lines, folder, environment, warm, followed)
    # A picture of statistics layer by layer shows nothing of one layer.
    found = {
        line: f"{done.rc}: {done.stdout} {done.stderr}"
        for line, done in followed.items()
        if done.rc or not done.stdout or "Warning" in done.stderr or ", 1 layer\n" in done.stdout
    }
    for line, done in zip(lines, all_done, strict=True):
        program, command, *_ = shlex.split(line)
        wrote = [said.split()[1] for said in done.stderr.splitlines() if said.startswith("wrote ")]
        files = [file for file in wrote if (folder / file).is_file()]
        fine = (
            program == "hookscope" and done.rc == 0 and done.stdout and "Warning" not in done.stderr
        )
        makers = ("capture", "grads", "step", "ablate", "sweep", "cam", "lens", "attribute")
        makers += ("report", "plot", "export", "filters")
        writes = command in makers and "--no-output" not in line
        writes = writes or "--chrome" in line or (command in WRITE_ON_REQUEST and " -o " in line)
        if not fine or len(files) != writes:
            found[line] = f"{done.rc}: {done.stderr}"
    return found


@pytest.mark.slow
@pytest.mark.sampled(THIRDS)
@pytest.mark.parametrize("third", range(THIRDS))
def test_the_examples_run_and_leave_the_samples_as_they_are(
    samples_folder, repo, clean_environment, warm_process, third: int
) -> None:
    lines = with_what_they_read(EXAMPLES[third::THIRDS])
    assert faults_of(lines, samples_folder, clean_environment, warm_process) == {}
    for path in (repo / "sample_models").rglob("*.*"):
        if path.is_file() and "__pycache__" not in path.parts:
            copy = samples_folder / path.relative_to(repo)
            assert copy.read_bytes() == path.read_bytes(), path.name


def test_a_broken_example_is_noticed(samples_folder, clean_environment, warm_process) -> None:
    lines = ["hookscope help capture", "hookscope help --nonsense", "hookscop help"]
    assert list(faults_of(lines, samples_folder, clean_environment, warm_process)) == lines[1:]
