"""What a path that does not exist is answered with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from hookscope.files.suggestions import near_files

RUN = Path(__file__).parents[2] / "sample_models" / "run"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(RUN, tmp_path / "runs" / "train-1")
    (tmp_path / "runs" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("runs/trian-1", "Did you mean runs/train-1?"),
        ("runs/nosuch", "Training runs in 'runs': train-1."),
        ("runs/nosuch/", "Training runs in 'runs': train-1."),
        ("runs/nosuch.png", "Otherwise."),  # nobody means a folder
        ("nosuch", "Otherwise."),
        ("elsewhere/nosuch", "Otherwise."),
    ],
)
def test_a_missing_path_is_answered_with_names_that_exist(runs, path: str, hint: str) -> None:
    assert near_files(path, "Otherwise.") == hint


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["capture", "phots.py:Net"], "photos.py"),
        (["capture", "phots.pt"], "photos.py"),
        (["capture", "resnet18", "--input", "phots.png"], "photos.jpg"),
        (["capture", "resnet18", "--input", "phots.npy"], "photos.jpg"),
        (["grads", "resnet18", "--loss", "phots.py:loss"], "photos.py"),
        (["show", "phots.safetensors"], "photos.capture.safetensors"),
        (["plot", "phots.safetensors"], "photos.capture.safetensors"),
        (["tree", "hf:./phots"], ""),
    ],
)
def test_a_suggested_file_is_of_the_kind_that_the_option_takes(
    run, tmp_path: Path, arguments: list[str], near: str
) -> None:
    for name in (
        "photos.py",
        "photos.jpg",
        "photos.md",
        "photos.svg",
        "photos.capture.safetensors",
    ):
        (tmp_path / name).touch()
    done = run(*arguments, cwd=tmp_path)
    assert (done.rc, done.stdout) == (2, "")
    suggested = re.search(r"Did you mean (.*?)\?", done.stderr)
    assert (suggested[1] if suggested else "") == near


@pytest.mark.parametrize("words", [("check",), ("show",), ("report",), ("diff", "runs/train-1")])
def test_every_command_that_reads_runs_says_which_there_are(run, runs, tmp_path, words) -> None:
    done = run(*words, "runs/nosuch", cwd=tmp_path)
    assert (done.rc, done.stdout) == (2, "")
    assert re.search("no (such )?file or folder", done.stderr)
    assert "Training runs in 'runs': train-1." in done.stderr
