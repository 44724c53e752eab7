"""Folders that vanish or become read-only during a run, clocks that jump: it can be resumed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hookscope
from hookscope.errors import HookscopeError, InputError, ResultsFileError, StoreError
from hookscope.stores.features.location import write_error
from tests.processes import run_python
from tests.refusals import refused

from .conftest import contents, mount
from .handwritten_features import ramp, write_features


@pytest.fixture
def extract(photos: Path, tmp_path: Path) -> Callable[..., object]:
    """Run twelve photos in shards of two; call ``then`` after the sixth."""

    def run(out: Path, then: Callable[[], object] = lambda: None, **more) -> object:
        happened = False

        def progress(state: object) -> None:
            nonlocal happened
            if state.rows >= 6 and not happened:
                happened = True
                then()

        more = {"layers": ["relu", "head"], "batch": 2, "shard_size": 1, "workers": 0} | more
        word = f"{tmp_path}/small.py:Small"
        return hookscope.extract(word, out, input=str(photos), progress=progress, **more)

    return run


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system."""
    yield from mount(tmp_path / "disk", "8m")


def remount(disk: Path, how: str) -> None:
    """Make a file system read-only, as soon as no file on it is open for writing, or writable."""
    for _ in range(600):
        line = ["mount", "-o", f"remount,{how}", str(disk)]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
        if not done.returncode:
            return
        time.sleep(0.1)
    raise AssertionError(done.stderr)


def replace_by_file(folder: Path) -> None:
    folder.rename(folder.with_name("away"))
    for _ in range(100):
        try:
            folder.write_text("a file")
            return
        except IsADirectoryError:  # made again by a shard that was being written
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("the folder was made again each time")


@pytest.mark.parametrize("change", ["removed", "a file", "read-only", "unmounted"])
def test_an_output_folder_that_goes_away_ends_the_run_which_goes_on_where_it_is_again(
    extract, request, tmp_path, change: str
) -> None:
    disk = tmp_path if change in ("removed", "a file") else request.getfixturevalue("disk")
    out = disk / "out"
    changes: dict[str, Callable[[], object]] = {
        "removed": lambda: shutil.rmtree(out.rename(tmp_path / "away")),
        "a file": lambda: replace_by_file(out),
        "read-only": lambda: remount(disk, "ro"),
        "unmounted": lambda: subprocess.run(["umount", "-l", str(disk)], check=True),
    }
    with refused(StoreError, hint="resume", status=1):
        extract(out, then=changes[change])
    if change == "a file":
        assert out.read_text() == "a file"
        out.unlink()
        out.with_name("away").rename(out)
    if change == "read-only":
        with pytest.raises(HookscopeError):
            extract(out, resume=True)
        remount(disk, "rw")
        assert extract(out, resume=True).resumed
    extract(out, resume=True)
    extract(tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("change", ["removed", "a file"])
@pytest.mark.parametrize("workers", [0, 1])
def test_inputs_that_go_away_end_the_run_with_the_name_of_one(
    extract, photos, tmp_path, workers: int, change: str
) -> None:
    away = photos.with_name("away")

    def then() -> None:
        photos.rename(away)
        if change == "a file":
            photos.write_text("a file")

    out = tmp_path / "out"
    with refused(InputError, r"photos/\d\d\.jpg", hint="resume"):
        extract(out, then=then, workers=workers)
    if change == "a file":
        photos.unlink()
    away.rename(photos)
    assert extract(out, resume=True).resumed >= 4
    extract(tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["all.npy", "all.safetensors", "all.parquet"])
def test_features_that_go_away_in_an_export_are_named_and_the_earlier_file_stays(
    tmp_path: Path, name: str
) -> None:
    folder = write_features(tmp_path / "f", {"fc/output": ramp(400, 40_000)}, 100)
    (tmp_path / name).write_bytes(b"earlier")

    def progress(done: int, total: int) -> None:
        if folder.exists():
            folder.rename(tmp_path / "away")

    with pytest.raises(ResultsFileError, match="rows-"):
        hookscope.export(folder, tmp_path / name, progress=progress)
    assert (tmp_path / name).read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [name]


def test_an_export_whose_folder_goes_away_says_so(tmp_path: Path) -> None:
    folder, to = write_features(tmp_path / "f", {"fc/output": ramp(4, 4)}, 2), tmp_path / "to"
    to.mkdir()

    def progress(done: int, total: int) -> None:
        if to.is_dir():
            replace_by_file(to)

    with pytest.raises(StoreError, match=r"/a\.npy"):
        hookscope.export(folder, to / "a.npy", progress=progress)


def test_a_row_and_a_line_that_go_away_after_the_folder_was_opened_are_named(tmp_path) -> None:
    folder = write_features(tmp_path / "f", {"fc/output": ramp(4, 2)}, 2)
    features = hookscope.load(folder)
    rows = features["fc"]
    assert features.inputs[0]["row"] == 0
    folder.rename(tmp_path / "away")
    with pytest.raises(ResultsFileError, match="rows-00000002"):
        rows[3]
    with pytest.raises(ResultsFileError, match=r"inputs\.jsonl"):
        features.inputs[1]


JUMPING = """
import itertools, sys, time
back = itertools.count(4_000_000_000, -86_400)  # a day back each time somebody looks
time.time = lambda: float(next(back))
time.time_ns = lambda: next(back) * 10**9
import hookscope
hookscope.extract("small.py:Small", sys.argv[1], layers=["relu", "head"], input="photos", batch=2,
    shard_size=1, workers=0, resume=True)
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_clock_that_runs_backwards_changes_nothing(photos, tmp_path) -> None:
    for out in ("out", "whole"):
        script = JUMPING if out == "out" else JUMPING.replace("time.time", "time.other")
        run_python("-c", script, out, cwd=tmp_path, status=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("moment", [0, 2**31, 2**33])
def test_the_times_of_files_play_no_part(extract, photos, tmp_path, moment: int) -> None:
    out = tmp_path / "out"
    extract(out)
    whole = contents(out)
    (out / "rows-00000004.safetensors").unlink()
    for path in (*photos.iterdir(), *out.rglob("*"), out, photos):
        os.utime(path, (moment, moment))
    assert extract(out, resume=True).resumed == 10
    assert contents(out) == whole
    assert np.isfinite(hookscope.load(out)["head"][:]).all()


@pytest.mark.parametrize("name", ["ENOSPC", "EFBIG", "EDQUOT", "EACCES"])
def test_the_hint_of_a_failed_write_depends_on_whether_the_disk_is_full(name: str) -> None:
    number = getattr(errno, name, errno.ENOSPC)
    error = write_error("to out/", OSError(number, os.strerror(number)))
    assert "to out/" in error.message and "--resume" in error.hint
    assert ("space" in error.hint, "writable" in error.hint) == (name != "EACCES", name == "EACCES")
