"""A file that is replaced atomically, where names are long, folders go away or processes end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookscope.errors import StoreError
from hookscope.files.atomic_files import replacement_file, write_bytes


def test_a_scratch_folder_that_is_gone_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    match = f"Cannot write {path}"
    with pytest.raises(StoreError, match=match), replacement_file(path, "Again.") as scratch:
        shutil.rmtree(scratch.parent)
    assert path.read_text() == "old"


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
