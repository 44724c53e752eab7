"""Input specs: files, folders, globs and standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from hookscope.errors import InputError
from hookscope.specs.input_spec import parse_inputs
from tests.refusals import refused


def expand_inputs(specs: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return one spec for each file and each other input that ``specs`` stand for."""
    return [spec.text for spec in parse_inputs(specs)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.png", "a.JPG", "c.tiff", "notes.txt", "deep/d.png", "star[1].png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def names(words: list[str]) -> list[str]:
    return [Path(file).name for file in expand_inputs(words)]


def test_words_keep_their_order(folder: Path) -> None:
    assert expand_inputs([f"{folder}/b.png", "-", folder / "a.JPG"]) == [
        f"{folder}/b.png",
        "-",
        f"{folder}/a.JPG",
    ]


def test_a_folder_stands_for_the_images_right_in_it(folder: Path) -> None:
    assert names([str(folder)]) == ["a.JPG", "b.png", "c.tiff", "star[1].png"]


def test_a_glob_gives_its_matches_in_order(folder: Path) -> None:
    assert names([f"{folder}/?.png", f"{folder}/*.txt"]) == ["b.png", "notes.txt"]
    assert names([f"{folder}/**/*.png"]) == ["b.png", "d.png", "star[1].png"]


def test_an_existing_file_is_no_glob(folder: Path) -> None:
    assert names([f"{folder}/star[1].png"]) == ["star[1].png"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("b.pgn", "There is no file"),
        ("none/b.png", "There is no file"),
        ("empty.png", "is empty"),
        ("hollow", "contains no images"),
        ("*.webp", "No file matches"),
        ("dangling.png", "There is no file"),
    ],
)
def test_a_word_that_names_nothing_is_refused(folder: Path, word: str, message: str) -> None:
    (folder / "empty.png").touch()
    (folder / "hollow").mkdir()
    (folder / "dangling.png").symlink_to(folder / "gone.png")
    with refused(InputError, message=message, status=2):
        expand_inputs([str(folder / word)])


def test_a_mistyped_file_is_answered_with_near_ones(folder: Path) -> None:
    with pytest.raises(InputError, match=r"Did you mean .*/b\.png"):
        expand_inputs([str(folder / "b.pgn")])


def test_empty_words_and_a_second_standard_input_are_refused() -> None:
    with pytest.raises(InputError, match="An input is empty"):
        expand_inputs([""])
    with pytest.raises(InputError, match="only once"):
        expand_inputs(["-", "-"])


@pytest.mark.parametrize(
    "module",
    ["specs.input_spec", "specs.model_spec", "specs.catalog", "specs.losses"],
)
def test_nothing_heavy_is_imported_to_judge_a_word(module: str) -> None:
    code = (
        f"import sys, hookscope.{module}\n"
        "heavy = {'torch', 'numpy', 'rich', 'PIL', 'torchvision'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
