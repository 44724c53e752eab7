"""What a path that does not exist is answered with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from hookscope.files.suggestions import near_files


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("runs/trian-1", "runs/train-1?"),
        ("runs/nosuch", "'runs': train-1."),
        ("runs/nosuch/", "'runs': train-1."),
        ("runs/nosuch.png", "Otherwise."),  # nobody means a folder
        ("elsewhere/nosuch", "Otherwise."),
    ],
)
def test_a_missing_path_is_answered_with_names_that_exist(
    tmp_path: Path, repo: Path, monkeypatch, path: str, named: str
) -> None:
    shutil.copytree(repo / "sample_models" / "run", tmp_path / "runs" / "train-1")
    (tmp_path / "runs" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert near_files(path, "Otherwise.").endswith(named)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("capture phots.py:Net", "photos.py"),
        ("capture phots.pt", "photos.py"),
        ("capture resnet18 --input phots.png", "photos.jpg"),
        ("capture resnet18 --input phots.npy", "photos.jpg"),
        ("grads resnet18 --loss phots.py:loss", "photos.py"),
        ("show phots.safetensors", "photos.capture.safetensors"),
        ("plot phots.safetensors", "photos.capture.safetensors"),
        ("tree hf:./phots", ""),
    ],
)
def test_a_suggested_file_is_of_the_kind_that_the_option_takes(
    refused, tmp_path: Path, words: str, near: str
) -> None:
    for ending in ("py", "jpg", "md", "svg", "capture.safetensors"):
        (tmp_path / f"photos.{ending}").touch()
    suggested = re.search(r"Did you mean (.*?)\?", refused(*words.split(), cwd=tmp_path))
    assert (suggested[1] if suggested else "") == near
