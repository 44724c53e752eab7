"""Every command is asked for the least of every source: it answers, or refuses in a sentence."""

from __future__ import annotations

import json
import shlex

import pytest

from hookscope.specs.commands import COMMANDS
from tests.conftest import Run
from tests.properties.conftest import Answer, Workplace
from tests.properties.minimal_requests import REQUESTS, TOO_SLOW, other_requests
from tests.properties.python_calls import without_times

WITHOUT_DOCUMENT = ("run", "completion", "help")
OTHERS = other_requests()


def name_of(pair: tuple[str, str]) -> str:
    return "-".join(pair)


def test_every_declared_command_has_a_request() -> None:
    declared = {name for group in COMMANDS.values() for name in group}
    assert {command for command, _ in REQUESTS} == declared
    assert not TOO_SLOW & set(REQUESTS)


@pytest.mark.parametrize("command", sorted({command for command, _ in OTHERS} - {"run"}))
def test_other_sources_are_refused(workplace: Workplace, command: str) -> None:
    for pair, words in OTHERS.items():
        if pair[0] == command and pair[1] != "program":  # a program would run
            answer = workplace.shell(command, f"{words} -q")
            assert (answer.status, answer.out, answer.files) == (2, "", {}), pair
            assert answer.err.startswith("Error: ") and "Traceback" not in answer.err, pair


def one_of_each_command() -> list[object]:
    """All pairs; beyond the first of a command they are exhaustive."""
    first = {command: pair for pair in reversed(REQUESTS) for command in pair[:1]}
    rest = set(REQUESTS) - set(first.values())
    return [
        pytest.param(pair, id=name_of(pair), marks=[pytest.mark.exhaustive] * (pair in rest))
        for pair in REQUESTS
    ]


@pytest.mark.slow
@pytest.mark.parametrize("pair", one_of_each_command())
def test_the_same_request_gives_the_same_bytes(
    workplace: Workplace, run: Run, pair: tuple[str, str]
) -> None:
    """In this process, which has run other requests, and in one of its own."""
    command, words = pair[0], REQUESTS[pair]
    words += " --json" if command not in WITHOUT_DOCUMENT else ""
    done = run(command, *shlex.split(words), cwd=workplace.folder)
    again = Answer(done.rc, done.stdout, done.stderr, workplace.take_files())
    if command == "run":  # it ends the process
        done = run(command, *shlex.split(words), cwd=workplace.folder)
        first = Answer(done.rc, done.stdout, done.stderr, workplace.take_files())
        assert first.out == again.out
        assert first.files.keys() == again.files.keys()  # with the times of the steps
        return
    first = workplace.shell(command, words)
    assert first.out and first.status == again.status
    assert untimed(first.out) == untimed(again.out)
    assert first.err == again.err or command == "extract"  # its pace
    assert first.files == again.files


def untimed(text: str) -> str:
    """A document without the times in it, or a text as it is."""
    return json.dumps(without_times(json.loads(text))) if text.startswith("{") else text


@pytest.mark.slow
def test_a_watched_program_prints_what_it_prints_alone(
    workplace: Workplace, run: Run, run_script
) -> None:
    alone = run_script(workplace.folder / "program.py")
    assert alone.rc == 0, alone.stderr
    for mode in ("", "--capture ", "--check ", "--trace ", "--list "):
        done = run("run", *shlex.split(f"{mode}-o out program.py"), cwd=workplace.folder)
        assert (done.rc, done.stdout) == (0, alone.stdout), mode
        workplace.take_files()
