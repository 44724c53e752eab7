"""Runs whose disk fills up or whose processes die: what they say, and that they can be finished."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import contents

pytestmark = pytest.mark.slow
WORDS = ("small.py:Small", "--layer", "relu", "--input", "photos", "--batch", "4")


@pytest.fixture
def capture(photos, clean_environment) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in a process that may be limited; shards of four rows, 33 kB each."""

    def run(folder: Path, *more: str, limit: int = resource.RLIM_INFINITY):
        command = [sys.executable, "-m", "hookscope", "capture", *WORDS, "--shard-size", "1"]
        return subprocess.run(
            [*command, "--workers", "0", "-o", f"{folder}/", *more],
            cwd=photos.parent,
            env=clean_environment,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1)),
        )

    return run


@pytest.fixture
def narrow(tmp_path) -> Iterator[Path]:
    """A file system of 64 kB."""
    folder = tmp_path / "narrow"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        subprocess.run(line, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_run_with_a_sentence_and_room_lets_it_go_on(
    capture, narrow, tmp_path
) -> None:
    out = narrow / "out"
    done = capture(out)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No space left on device" in done.stderr
    assert "make room, then run the same command with --resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in out.glob("*rows*")] == ["rows-00000000.safetensors"]
    again = capture(out, "--resume")
    assert (again.returncode, "Traceback" in again.stderr) == (1, False)
    subprocess.run(["mount", "-o", "remount,size=4m", str(narrow)], check=True)
    resumed = capture(out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed: 4 rows had been done already" in resumed.stderr
    capture(tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize(("limit", "more"), [(20_000, ()), (3_000, ("--stats-only",))])
def test_files_that_may_not_grow_end_the_run_with_a_sentence(
    capture, tmp_path, limit, more
) -> None:
    done = capture(tmp_path / "out", *more, limit=limit)
    assert (done.returncode, done.stdout) == (1, "")
    assert "File too large" in done.stderr
    assert "with --resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert capture(tmp_path / "out", *more, "--resume").returncode == 0
    capture(tmp_path / "undisturbed", *more)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


DYING = """
import os, signal, sys
import hookscope

def progress(state):
    last = os.environ.get("RANK") == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if last and sys.argv[1] == "out/" and sys.argv[2] == "die" and state.rows >= 4:
        os.kill(os.getpid(), signal.SIGKILL)

hookscope.extract("small.py:Small", sys.argv[1], layers=["relu", "head"], input="photos", batch=1,
    shard_size=1, workers=0, progress=progress, resume=sys.argv[2] == "resume")
"""


@pytest.fixture
def launch(photos, tmp_path) -> Callable[..., None]:
    """Runs a script whose process of rank 1 dies on its fourth row."""
    (tmp_path / "dying.py").write_text(DYING)

    def run(*words: str, well: bool = True) -> None:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
        assert (done.returncode == 0) is well, done.stderr

    return run


TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


def test_a_process_that_dies_is_started_again_and_the_bytes_are_the_same(launch, tmp_path) -> None:
    launch("dying.py", "undisturbed/", "-")
    restarting = (*TORCHRUN, "--max-restarts", "1", "--nproc-per-node", "2")
    launch(*restarting, "dying.py", "out/", "die")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_another_number_of_processes_finishes_what_was_begun(launch, tmp_path) -> None:
    launch("dying.py", "undisturbed/", "-")
    launch(*TORCHRUN, "--nproc-per-node", "2", "dying.py", "out/", "die", well=False)
    begun = len(list((tmp_path / "out").glob("rows-*")))
    assert 0 < begun < 12
    assert not (tmp_path / "out" / "manifest.json").exists()
    launch(*TORCHRUN, "--nproc-per-node", "3", "dying.py", "out/", "resume")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"] == 12
