"""Input specs: files, folders, globs and standard input, judged before torch is imported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from hookscope.errors import InputError
from hookscope.specs.catalog import list_is_current
from hookscope.specs.input_spec import parse_inputs
from tests.processes import run_python
from tests.refusals import refused


def expand_inputs(specs: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return one spec for each file and each other input that ``specs`` stand for."""
    return [spec.text for spec in parse_inputs(specs)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.png", "a.JPG", "c.tiff", "notes.txt", "deep/d.png", "star[1].png", "x=2/e.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


# Words, and the files that they stand for; an existing file is no glob.
WORDS = [
    ([""], ["a.JPG", "b.png", "c.tiff", "star[1].png"]),  # a folder: the images right in it
    (["?.png", "*.txt"], ["b.png", "notes.txt"]),
    (["**/*.png"], ["b.png", "deep/d.png", "star[1].png"]),
    (["star[1].png"], ["star[1].png"]),
    (["x=2/*.npy"], ["x=2/e.npy"]),
]


@pytest.mark.parametrize(("words", "files"), WORDS)
def test_words_stand_for_files_in_their_order(folder: Path, words, files) -> None:
    found = expand_inputs([f"{folder}/{word}" for word in words])
    assert sorted(found) == sorted(f"{folder}/{file}" for file in files)
    if len(words) > 1:
        assert found == [f"{folder}/{file}" for file in files]


def test_words_keep_their_meaning_when_expanded(folder: Path) -> None:
    assert expand_inputs([f"{folder}/b.png", "-", folder / "a.JPG"]) == [
        f"{folder}/b.png",
        "-",
        f"{folder}/a.JPG",
    ]
    np.save(folder / "a.npy", np.ones(1))
    words = [f"ids={folder}/*.npy", "random:1x3", f"0={folder}/a.npy", "x=text:a=b", "text:c:d"]
    again = expand_inputs(words)
    assert again[0] == f"ids={folder}/a.npy"
    assert parse_inputs(again) == parse_inputs(words)
    assert [word.rest for word in parse_inputs(again)[-2:]] == ["a=b", "c:d"]


@pytest.mark.parametrize(
    "word", ["b.pgn", "none/b.png", "empty.png", "hollow", "*.webp", "dangling.png"]
)
def test_a_word_that_names_nothing_is_refused(folder: Path, word: str) -> None:
    (folder / "empty.png").touch()
    (folder / "hollow").mkdir()
    (folder / "dangling.png").symlink_to(folder / "gone.png")
    hint = f"{folder}/b.png" if word == "b.pgn" else ""  # a near one
    with refused(InputError, message=word, hint=hint, status=2):
        expand_inputs([str(folder / word)])


def test_empty_words_and_a_second_standard_input_are_refused() -> None:
    for words, subject in (([""], "empty"), (["-", "-"], "once")):
        with pytest.raises(InputError, match=subject):
            expand_inputs(words)


PROBE = """
import contextlib, io, json, sys
import hookscope.specs.losses, hookscope.specs.model_spec
from hookscope.cli.main import main
found = []
for line in json.load(sys.stdin):
    said = io.StringIO()
    status = None
    with contextlib.redirect_stderr(said):
        try:
            status = main(line.split())
        except SystemExit as end:
            status = end.code
    heavy = {"torch", "numpy", "rich", "PIL", "torchvision"} & set(sys.modules)
    found.append([status, said.getvalue(), sorted(heavy)])
print(json.dumps(found))
"""
# Requests, and what is wrong with them.
EARLY = {
    "capture --weights nope.pth": "'nope.pth'",
    "capture --mean 1": "--mean",
    "capture --preprocess imagenet": "--preprocess",
    "capture --std 0,0,0": "--std",
    "capture --layer=": "layer pattern",
    "tree --layer {a": "brace",
    "capture --input ids=nope.npy": "'nope.npy'",
    "capture --input random:3xx": "'3xx'",
    "capture --input ones:2 --mean 1": "--mean",
    "capture --input text.npy": "text.npy",
    "capture --input text.png": "'text.png'",
    "grads --target nope.npy": "'nope.npy'",
    "grads --loss norm --reduction mean": "norm",
}
if list_is_current():  # with an older torchvision, names are checked later
    EARLY |= {"tree resnet17": "'resnet17'", "capture --weights IMAGENET1K_V9": "'IMAGENET1K_V9'"}


def test_an_invalid_request_is_an_error_before_torch_is_imported(
    clean_environment: dict[str, str], tmp_path: Path
) -> None:
    for name in ("text.png", "text.npy"):
        (tmp_path / name).write_text("This is no image.\n")
    asked = json.dumps(list(EARLY))
    done = run_python("-c", PROBE, cwd=tmp_path, env=clean_environment, stdin=asked, status=0)
    for line, (status, said, heavy) in zip(EARLY, json.loads(done.stdout), strict=True):
        assert (status, heavy) == (2, []), line
        assert EARLY[line] in said, line
