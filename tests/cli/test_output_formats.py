"""What a command writes is of the format that the name says, and a link stays a link."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import hookscope
from hookscope.errors import RequestError, StoreError
from hookscope.files import atomic_files
from hookscope.files import output_path as outputs

DIGITS = Path(__file__).resolve().parents[2] / "sample_models"
MODEL, FIVE, VALUES = (
    f"{DIGITS}/digits.py:trained",
    f"{DIGITS}/five.png",
    f"{DIGITS}/five.safetensors",
)


@pytest.mark.slow
def test_capture_writes_the_arrays_of_numpy(run, refused, tmp_path: Path) -> None:
    work = tmp_path / "work"
    words = ("capture", MODEL, "--input", FIVE, "--layer")
    done = run(*words, "conv1", "-o", "a.npy", "--json")
    assert done.rc == 0, done.stderr
    wanted = hookscope.load(VALUES)
    assert np.allclose(np.load(work / "a.npy"), wanted["conv1/output"].numpy(), atol=1e-6)
    assert json.loads(done.stdout)["file"] == "a.npy"
    assert "next:" not in done.stderr  # which would not open it
    again = run(*words, "conv1", "-o", "a.npy")
    assert again.rc == 2 and "--force" in again.stderr
    assert "a.npy exists" in again.stderr

    for note in ("wrote a.npz", "replacing"):
        done = run(*words, "conv*", "-o", "a.npz", "--dtype", "bfloat16")
        assert done.rc == 0 and note in done.stderr
    assert "numpy has no bfloat16" in done.stderr
    with np.load(work / "a.npz") as found:
        assert found.files == ["conv1/output", "conv2/output"]
    for name in ("a.npy", "a.npz"):
        shown = run("show", name)
        assert shown.rc == 0 and "1x16x8x8" in shown.stdout

    before = (work / "a.npy").read_bytes()
    assert "stores one array, but there are 2 tensors: conv1/output, conv2/output" in refused(
        *words, "conv*", "-o", "a.npy", "--force"
    )
    assert (work / "a.npy").read_bytes() == before

    done = run("export", VALUES, "--layer", "conv1", "-o", "b.npy")
    assert (done.rc, done.stderr) == (0, "wrote b.npy (4.22 kB)\n")
    assert np.array_equal(np.load(work / "b.npy"), wanted["conv1/output"].numpy())


@pytest.mark.slow
def test_a_failed_hook_leaves_no_arrays_that_look_complete(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "h.py").write_text("def fail(*arguments):\n    raise KeyError('no')\n")
    done = run("capture", MODEL, "--hook", "conv2=h.py:fail", "--input", FIVE, "-o", "a.npz")
    assert done.rc == 1 and "KeyError" in done.stderr
    assert not (tmp_path / "work" / "a.npz").exists()


# Links


def bring(path: Path, name: str) -> None:
    """Write to ``path`` as each command does."""
    if name == "text":
        atomic_files.write_text(path, "new")
    elif name == "capture":
        hookscope.load(VALUES).save(path.with_suffix(".npz") if not path.suffix else path)
    elif name == "report":
        hookscope.report(VALUES).save(path)
    elif name == "picture":
        hookscope.plot(VALUES, "conv1", count=1).save(path)
    else:
        hookscope.export(VALUES, path)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("text", ""),
        ("capture", ".safetensors"),
        ("capture", ".npz"),
        ("report", ".html"),
        ("picture", ".png"),
        ("export", ".npz"),
    ],
)
@pytest.mark.parametrize("links", [1, 3])
@pytest.mark.parametrize("dangling", [False, True])
def test_writing_to_a_link_replaces_what_it_leads_to(
    tmp_path: Path, name: str, ending: str, links: int, dangling: bool
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    target = there / f"target{ending}"
    if not dangling:
        target.write_text("old")
        other = there / "hard"  # another name of the old file, which keeps the old content
        other.hardlink_to(target)
    last = target
    for i in range(links):
        link = tmp_path / f"link{i}{ending}"
        link.symlink_to(os.path.relpath(last, tmp_path) if i % 2 else last)
        last = link
    bring(last, name)
    assert last.is_symlink() and not target.is_symlink()
    assert target.stat().st_size > 0 and target.read_bytes() != b"old"
    assert dangling or other.read_text() == "old"
    assert {file.name for file in there.iterdir()} <= {target.name, "hard"}
    assert {file.name for file in tmp_path.iterdir()} == {
        "there",
        *(f"link{i}{ending}" for i in range(links)),
    }


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_that_lead_nowhere_are_refused(refused, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "loop.npz").symlink_to("pool.npz")
    (work / "pool.npz").symlink_to("loop.npz")
    (work / "self.npz").symlink_to("self.npz")
    (work / "far.npz").symlink_to("no/folder/far.npz")
    (work / "folder.npz").symlink_to(".")
    (work / "device.npz").symlink_to("/dev/null")
    before = {name: os.readlink(work / name) for name in os.listdir(work)}
    for name, message in [
        ("loop.npz", "points back"),
        ("self.npz", "points back"),
        ("far.npz", "The output folder"),
        ("folder.npz", "is a folder"),
        ("device.npz", "regular file"),
    ]:
        with pytest.raises(RequestError, match=message):
            outputs.check_output(work / name, force=True, suffix=".npz")
        assert message in refused("export", VALUES, "-o", name, "--force")
    for name in ("loop.npz", "self.npz", "far.npz"):
        with pytest.raises(StoreError):
            hookscope.export(VALUES, work / name)
    assert {name: os.readlink(work / name) for name in os.listdir(work)} == before


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_to_a_file_of_somebody_else_needs_force(run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "diary.txt").write_text("mine")
    (work / "a.npz").symlink_to("diary.txt")
    done = run("export", VALUES, "-o", "a.npz")
    assert done.rc == 2 and "by hookscope" in done.stderr
    assert (work / "diary.txt").read_text() == "mine"


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    name = "n" * 251 + ".npz"
    hookscope.export(VALUES, tmp_path / name)
    assert os.listdir(tmp_path) == [name]
