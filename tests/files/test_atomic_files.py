"""A file that is replaced atomically, where names are long, folders go away or processes end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookscope.errors import StoreError
from hookscope.files.atomic_files import replacement_file, write_bytes, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with replacement_file(path, "Again.") as scratch:
        own = scratch.parent  # a folder: what is written beside the file goes with it
        assert own.parent == tmp_path and scratch.stat().st_size == 0
        assert own.name.startswith(".a.") and own.name.endswith(".part")
        scratch.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), names(tmp_path)) == ("new", ["a"])


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("value"), RuntimeError("else")])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: Any) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    expected = RuntimeError if isinstance(error, RuntimeError) else StoreError
    with pytest.raises(expected) as caught, replacement_file(path, "Do this."):
        raise error
    assert str(error) in str(caught.value)
    assert (path.read_text(), names(tmp_path)) == ("old", ["a"])
    if expected is StoreError:
        assert str(path) in str(caught.value) and caught.value.hint.endswith(" Do this.")


def test_a_scratch_folder_that_is_gone_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(StoreError, match=str(path)), replacement_file(path, "Again.") as scratch:
        shutil.rmtree(scratch.parent)
    assert path.read_text() == "old"


@pytest.mark.parametrize("exists", [True, False])
def test_saving_to_a_link_writes_the_file_behind_it(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "real", tmp_path / "link"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to(target)
    assert write_text(link, "é") == 3
    assert link.is_symlink() and link.resolve() == target
    assert target.read_text() == "é\n"
    assert (names(tmp_path), names(target.parent)) == (["far", "link"], ["real"])


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_the_mode_of_a_file_is_that_of_any_new_one(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a", "")
        (tmp_path / "b").touch()
        assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    finally:
        assert os.umask(before) == mask


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127])
def test_the_longest_names_can_be_written(tmp_path: Path, name: str) -> None:
    assert write_bytes(tmp_path / name, b"12345") == 5
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"12345")]


WRITING = """
import sys, time
from hookscope.files.end_signals import catch_end_signals
from hookscope.files.atomic_files import replacement_file
with catch_end_signals(), replacement_file(sys.argv[1], "Again.") as scratch:
    scratch.write_bytes(bytes(1000))
    print("writing", flush=True)
    time.sleep(600)
"""

Writing = Callable[[Path], subprocess.Popen[bytes]]


@pytest.fixture
def writing(repo: Path) -> Iterator[Writing]:
    """Start a process that does not finish writing a file, and wait until it writes."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(path: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WRITING, str(path)]
        processes.append(
            subprocess.Popen(command, cwd=repo, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        )
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline() == b"writing\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_process_that_is_asked_to_end_leaves_nothing(
    writing: Writing, tmp_path: Path, number: signal.Signals
) -> None:
    process = writing(tmp_path / "a.bin")
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(number)
    process.wait()
    assert not list(tmp_path.iterdir())


def test_the_next_write_removes_what_a_killed_process_left_but_no_others(
    writing: Writing, tmp_path: Path
) -> None:
    path = tmp_path / "a.bin"
    killed = [writing(path), writing(path)]
    for process in killed:
        process.kill()
        process.wait()
    left = set(tmp_path.iterdir())
    assert len(left) == 2
    writing(path)
    [alive] = set(tmp_path.iterdir()) - left
    assert not any(part.exists() for part in left)
    other = tmp_path / ".a.bin.b.12345678.part"
    other.mkdir()
    link = tmp_path / ".a.bin.12345678.part"
    link.symlink_to(other, target_is_directory=True)
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert set(tmp_path.iterdir()) == {path, alive, other, link}
