"""Runs whose disk is full or whose processes die can be resumed; several processes share one."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hookscope.errors import StoreError
from hookscope.extraction.shard_writer import (
    BackgroundWriter,
    PendingBatch,
    Shard,
    ShardFile,
    StoredColumn,
)
from hookscope.stores.features.folder import shard_name
from hookscope.stores.features.location import Location

from .conftest import contents, mount

resource = pytest.importorskip("resource")  # which Windows does not have
pytestmark = pytest.mark.slow
WORDS = ("small.py:Small", "--layer", "relu", "--input", "photos", "--batch", "4")


@pytest.fixture
def capture(photos, clean_environment) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in a process that may have limits; shards have four rows, 33 kB each."""

    def run(folder: Path, *more: str, limit: int = resource.RLIM_INFINITY):
        command = [sys.executable, "-m", "hookscope", "extract", *WORDS, "--shard-size", "1"]
        return subprocess.run(
            [*command, "--workers", "0", "-o", f"{folder}/", *more],
            cwd=photos.parent,
            # A limit must not cut the files of compiled modules, which other tests then import.
            env={**clean_environment, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1)),
        )

    return run


@pytest.fixture
def narrow(tmp_path) -> Iterator[Path]:
    yield from mount(tmp_path / "narrow", "64k")


@pytest.mark.exhaustive
def test_a_full_disk_ends_the_run_and_room_lets_it_go_on(capture, narrow, tmp_path) -> None:
    out = narrow / "out"
    done = capture(out)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No space left on device" in done.stderr and "--resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in out.glob("*rows*")] == ["rows-00000000.safetensors"]
    again = capture(out, "--resume")
    assert (again.returncode, "Traceback" in again.stderr) == (1, False)
    subprocess.run(["mount", "-o", "remount,size=4m", str(narrow)], check=True)
    resumed = capture(out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "4 rows" in resumed.stderr
    capture(tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("limit", "more"), [(20_000, ()), (3_000, ("--stats-only",))])
def test_files_that_may_not_grow_end_the_run(capture, tmp_path, limit, more) -> None:
    done = capture(tmp_path / "out", *more, limit=limit)
    assert (done.returncode, done.stdout) == (1, "")
    assert "File too large" in done.stderr and "--resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert capture(tmp_path / "out", *more, "--resume").returncode == 0
    capture(tmp_path / "undisturbed", *more)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


# As many words as there are: where to, what happens, and options as JSON.
SCRIPT = """
import json, logging, os, signal, sys, time
from pathlib import Path
import hookscope

logging.basicConfig()
out, what, more = sys.argv[1], sys.argv[2], json.loads((*sys.argv, "{}")[3])
rank = os.environ.get("RANK", "0")
last = rank == os.environ["DYING"] and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
if last and what in ("early", "force"):
    os.kill(os.getpid(), signal.SIGKILL)
Path(f"{what}{rank}.pid").write_text(str(os.getpid()))

def progress(state):
    if what == "slow":
        time.sleep(0.3)  # so that there is a while in which it may be killed
    if last and what == "die" and state.rows >= 4:
        os.kill(os.getpid(), signal.SIGKILL)

options = {"layers": ["relu", "head"], "batch": 1, "shard_size": 1, "workers": 0} | more
hookscope.extract("small.py:Small", out, input="photos", progress=progress,
    resume=what in ("slow", "resume"), force=what == "force", **options)
threads = [task.read_text() for task in Path('/proc/self/task').glob('*/comm')]
assert not [name for name in threads if 'gloo' in name]  # they may end in an abort
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


@pytest.fixture
def launch(photos, tmp_path) -> Callable[..., str]:
    """Run a script of which the process of rank 1, or another, may die at its fourth row."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*words: str, well: bool = True, rank: int = 1) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "DYING": str(rank)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert (done.returncode == 0) is well, done.stderr
        return done.stderr

    return run


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("processes", "options", "idle"),
    [
        (2, '{"batch": 2}', 0),
        (3, '{"batch": 6}', 1),
        (2, '{"batch": 2, "stats_only": true}', 0),
        (2, '{"batch": 2, "layers": "relu", "reduce": "pca:2"}', 0),
    ],
)
def test_several_processes_write_what_one_writes(
    launch, tmp_path, processes, options, idle
) -> None:
    launch("script.py", "one/", "-", options)
    said = launch(*TORCHRUN, f"--nproc-per-node={processes}", "script.py", "out/", "-", options)
    assert (f"{processes} processes share 2 shards, so {idle} have" in said) is bool(idle)
    assert contents(tmp_path / "one") == contents(tmp_path / "out")


@pytest.mark.exhaustive
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_is_started_again_and_the_bytes_are_the_same(
    launch, tmp_path, rank: int
) -> None:
    launch("script.py", "undisturbed/", "-")
    restarting = (*TORCHRUN, "--max-restarts", "1", "--nproc-per-node", "2")
    launch(*restarting, "script.py", "out/", "die", rank=rank)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [TORCHRUN, (*TORCHRUN[:2], "--master-port", "29417")], ids=len)
def test_started_again_before_it_began_a_run_does_not_go_on_from_older_results(
    launch, photos, tmp_path, how
) -> None:
    launch("script.py", "out/", "-")
    older = contents(tmp_path / "out")
    shutil.copy(photos / "00.jpg", photos / "03.jpg")
    restarting = (*how, "--max-restarts", "1", "--nproc-per-node", "2", "script.py")
    launch(*restarting, "out/", "early", well=False)
    assert contents(tmp_path / "out") == older
    launch(*restarting, "out/", "force")
    launch("script.py", "undisturbed/", "-")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed") != older


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("processes", [(1, 1), (2, 3)])
def test_any_process_killed_from_outside_and_any_number_of_them_finish_the_run(
    launch, tmp_path, seed: int, processes
) -> None:
    launch("script.py", "undisturbed/", "-")
    dice, out = random.Random(seed), tmp_path / "out"
    for count in processes:
        words = (*TORCHRUN, f"--nproc-per-node={count}") if count > 1 else ()
        pids = [tmp_path / f"slow{rank}.pid" for rank in range(count)]
        for pid in pids:
            pid.unlink(missing_ok=True)
        begun = len(list(out.glob("rows-*")))
        with (tmp_path / "log").open("w") as log:
            launched = subprocess.Popen(
                [sys.executable, *words, "script.py", "out/", "slow"],
                cwd=tmp_path,
                env={**os.environ, "DYING": ""},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            while launched.poll() is None and (
                len(list(out.glob("rows-*"))) <= begun or not all(pid.exists() for pid in pids)
            ):
                time.sleep(0.02)
            time.sleep(dice.random() * 0.2)
            os.kill(int(dice.choice(pids).read_text()), signal.SIGKILL)
            assert launched.wait() != 0
        assert not (out / "manifest.json").exists()
    launch(*TORCHRUN, "--nproc-per-node", "3", "script.py", "out/", "resume")
    assert contents(out) == contents(tmp_path / "undisturbed")


class Full(Location):
    """A folder that is full while the unfinished second shard takes the space."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.taken, self.refused = threading.Event(), threading.Event()

    def scratch(self, name: str) -> Path:
        if name == shard_name(2):
            self.taken.set()
        return super().scratch(name)

    def write(self, name: str, data: bytes) -> None:
        self.taken.wait()
        if not self.refused.is_set():
            self.refused.set()
            raise StoreError("No space left.", "")
        assert not self.scratch(shard_name(2)).exists()
        super().write(name, data)


class Gone(Location):
    """A folder in which no shard can be published."""

    def publish(self, scratch: Path, name: str) -> None:
        raise OSError(errno.EIO, "Input/output error")


def write_three_rows(location: Location) -> None:
    def begin(location: Location, shard: Shard) -> ShardFile:
        file = ShardFile(location, shard, [StoredColumn("a/output", (1,), torch.float32)])
        if shard.first and isinstance(location, Full):
            location.refused.wait()
        return file

    with BackgroundWriter(location, begin) as writing:
        for first, last in ((0, 2), (2, 3)):
            values = {"a/output": torch.ones(last - first, 1)}
            lines = [{"row": row} for row in range(first, last)]
            writing.put(PendingBatch(Shard(first, first + 2), range(first, last), values, lines))


def test_what_is_finished_is_known_though_there_was_no_room_to_tell(tmp_path) -> None:
    location = Full(str(tmp_path))
    write_three_rows(location)
    assert sorted(location.names()) == [".parts/00000000.json", shard_name(0)]


def test_a_shard_that_cannot_be_finished_after_the_last_batch_ends_the_run(tmp_path) -> None:
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(write_three_rows, Gone(str(tmp_path))).exception(timeout=300)
    assert isinstance(error, StoreError) and "Input/output error" in error.message
    assert not list(tmp_path.iterdir())
