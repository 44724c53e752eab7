"""What hookscope says, command by command: ``--refresh`` writes what it says now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.transcript import Entry, Said, Session, read, same, written

FOLDER = Path(__file__).parent / "transcripts"
FILES = sorted(FOLDER.glob("*.txt"))
MOST_LINES, MOST_LINES_IN_ALL = 150, 12_000
STATUSES = {0, 1, 2, 130}
ONE_LINE = ("next: ", "hookscope: ")  # to be copied, or for a log


@pytest.fixture
def session(samples_folder, clean_environment, warm_process) -> Session:
    return Session(samples_folder, clean_environment, warm_process)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_says_what_the_transcript_says(file: Path, session) -> None:
    parts = read(file.read_text("utf-8"))
    faults = []
    for entry, said in session.run(parts):
        faults += [f"{entry.typed[0]}\n    {fault}" for fault in broken_rules(entry, said)]
        if not same(entry.expected, said.lines()):
            entry.expected = said.lines()
    if "HOOKSCOPE_REFRESH" in os.environ:
        file.write_text(written(parts), "utf-8")
    assert written(parts).splitlines() == file.read_text("utf-8").splitlines()
    assert not faults, "\n".join(faults)


def broken_rules(entry: Entry, said: Said) -> list[str]:
    """What is wrong with the form of what hookscope says, whatever its words are."""
    if "hookscope" not in entry.typed[0]:
        return []
    found = [] if said.status in STATUSES else [f"the status {said.status}"]
    if "Traceback (most recent call last)" in said.out + said.err:
        found.append("a traceback")
    if entry.columns:
        lines = (line for line in said.shown.splitlines() if not line.startswith(ONE_LINE))
        found += [f"too long: {line}" for line in lines if len(line) > entry.columns]
    errors = [line for line in said.err.splitlines() if line.startswith("Error: ")]
    # One that quotes the error of a program ends as that does.
    found += [
        f"no full stop: {x}" for x in errors if x.count("Error: ") < 2 and x[-1] not in ".?:)'"
    ]
    if entry.prompt == "$" and said.status == 2 and not errors and entry.words() != ["hookscope"]:
        found.append("status 2 without an error")
    return found


def test_transcripts_are_short() -> None:
    lines = {file.name: len(file.read_text("utf-8").splitlines()) for file in FILES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    assert sum(lines.values()) <= MOST_LINES_IN_ALL


@pytest.mark.parametrize(
    ("expected", "said", "equal"),
    [
        ("loss 1.2345", "loss 1.2346", True),
        ("loss 1.2345", "loss  1.234", True),
        ("loss 1.2345", "loss 1.3345", False),
        ("loss 1.2345", "Loss 1.2345", False),
        ("3 of 4 layers", "3 of 5 layers", False),
        ("  1,234.5 MiB", "  1,234.6 MiB", True),
        ("noise 2.1e-09", "noise -3.4e-09", True),
    ],
)
def test_only_the_last_digits_of_numbers_are_free(expected: str, said: str, equal: bool) -> None:
    assert same([expected], [said]) is equal


def test_a_transcript_is_read_and_written_as_it_stands() -> None:
    for file in FILES:
        assert written(read(file.read_text("utf-8"))) == file.read_text("utf-8")


def test_what_a_session_says_is_shown_with_its_streams_and_status(session) -> None:
    text = (
        "# Two programs and Python.\n$ hookscope tree nosuch.py:Net\n$ echo a; exit 3\n"
        ">>> x = 3\n>>> for i in range(2):\n...     print(x + i)\n>>> x.y\n"
        "40$ hookscope tree sample_models/digits.py:trained --depth 0\n"
    )
    tree, echo, assigned, loop, failed, narrow = (said for _, said in session.run(read(text)))
    assert tree.status == 2 and "nosuch.py" in tree.err and not tree.out
    assert echo == Said("a\n", "", 3) and echo.lines() == ["  a", "[3]"]
    assert (assigned, loop.out) == (Said(), "3\n4\n")
    assert failed.err.startswith("AttributeError: ") and "'y'" in failed.err
    assert narrow.out and all(len(line) <= 40 for line in narrow.out.splitlines())
