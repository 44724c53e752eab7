"""Damaged metadata of results are named; what a command says of them is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hookscope
from hookscope.errors import ResultsFileError, StoreError
from hookscope.files.output_path import MARK
from hookscope.files.safetensors_header import header_of
from hookscope.stores.capture_file import open_capture
from tests.damaged.file_kinds import DIGITS, FIVE, SAMPLES, complex_capture
from tests.damaged.test_damage import packed


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("records", 0, "shape"), [2, 3], "shape"),
        (("records", 0, "call"), "1", "call"),
        (("records", 0, "stats", "max"), 1e308 * 10, "statistics"),
        (("inputs", 0), {"spec": 5}, r"inputs\.0\.spec"),
        (("top",), [[{"index": None}]], r"top\.0\.0"),
    ],
)
def test_damaged_metadata_are_named(tmp_path: Path, place, value, message: str) -> None:
    path = tmp_path / "a"
    hookscope.capture(DIGITS, input=FIVE).save(path)
    table, start = header_of(path)
    info = json.loads(table["__metadata__"][MARK])
    holder = info
    for part in place[:-1]:
        holder = holder[part]
    holder[place[-1]] = value
    table["__metadata__"][MARK] = json.dumps(info)
    path.write_bytes(packed(table, path.read_bytes()[start:]))
    for read in (hookscope.load, open_capture):
        with pytest.raises(ResultsFileError, match=message):
            read(path)


def test_what_cannot_be_read_is_a_wrong_request_and_what_cannot_be_written_a_failure(
    tmp_path: Path,
) -> None:
    with pytest.raises(ResultsFileError) as read:
        hookscope.load(tmp_path / "none")
    with pytest.raises(StoreError) as written:
        complex_capture().save(tmp_path / "none" / "a")
    assert (read.value.exit_code, written.value.exit_code) == (2, 1)


@pytest.mark.parametrize("arguments", [["show"], ["report"], ["diff", "whole"]])
def test_the_command_refuses_control_characters_of_a_file_in_a_sentence(
    run, tmp_path: Path, arguments: list[str]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    whole = (SAMPLES / "five.safetensors").read_bytes()
    (work / "whole").write_bytes(whole)
    table, start = header_of(work / "whole")
    info = json.loads(table["__metadata__"][MARK])
    table["__metadata__"][MARK] = json.dumps({**info, "versions": {"\x1b[31m": 5}})
    (work / "sly").write_bytes(packed(table, whole[start:]))
    done = run(*arguments, "sly")
    assert done.rc == 2
    assert done.stderr.startswith("Error: Cannot read sly: ")
    assert "\x1b" not in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2
