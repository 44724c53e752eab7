"""What in a folder of inputs is no file is left out with a note, and a folder that is gone."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest
from PIL import Image

import hookscope
from hookscope.errors import InputError
from hookscope.files.input_files import list_files
from tests.conftest import needs_list
from tests.processes import run_python

DIGITS = Path(__file__).resolve().parents[2] / "sample_models"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and links")


def fill(folder: Path, images: int = 2) -> Path:
    """Images, and what is called like images and is none."""
    folder.mkdir(parents=True)
    for i in range(images):
        Image.new("L", (8, 8), 40 * i).save(folder / f"a{i}.png")
    (folder / "dangling.png").symlink_to("nowhere.png")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "notes.txt").write_text("not called like an image")
    os.mkfifo(folder / "pipe.png")
    (folder / "sub.png").mkdir()
    (folder / "sub").mkdir()
    return folder


TOLD = (
    "4 entries that are not files: dangling.png (a broken link), loop.png (a broken link),"
    " pipe.png (a pipe), ..."
)


@pytest.mark.parametrize("word", ["{}", "{}/*.png", "{}/*"])
def test_what_is_left_out_is_told(tmp_path: Path, caplog, word: str) -> None:
    folder = fill(tmp_path / "photos")
    word = word.format(folder)
    with caplog.at_level(logging.INFO, logger="hookscope"):
        found = list_files(word)
    names = [Path(file).name for file in found]
    assert [name for name in names if name.endswith(".png")] == ["a0.png", "a1.png"]
    assert caplog.messages == [f"skipped in {word}: {TOLD}"]


def test_folders_that_a_glob_looks_into_are_not_told(tmp_path: Path, caplog) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    Image.new("L", (8, 8)).save(tmp_path / "deep" / "er" / "a.png")
    with caplog.at_level(logging.INFO, logger="hookscope"):
        assert len(list_files(f"{tmp_path}/**/*")) == 1
    assert caplog.messages == []


def test_a_folder_of_nothing_else_says_what_is_in_it(tmp_path: Path) -> None:
    folder = fill(tmp_path / "photos", images=0)
    with pytest.raises(InputError, match="contains no images") as caught:
        list_files(str(folder))
    assert TOLD in caught.value.message


@pytest.mark.slow
@pytest.mark.parametrize("command", ["capture", "grads", "extract", "api"])
def test_each_way_to_run_says_so_once(run, tmp_path: Path, caplog, command: str) -> None:
    folder = fill(tmp_path / "work" / "photos")
    model = f"{DIGITS}/digits.py:trained"
    if command == "api":
        with caplog.at_level(logging.INFO, logger="hookscope"):
            hookscope.capture(model, input=str(folder), layers="fc")
        assert sum(TOLD in text for text in caplog.messages) == 1
        return
    output = "out/" if command == "extract" else "out.safetensors"
    words = (command, model, "--input", "photos", "--layer", "fc", "-o", output, "--force")
    done = run(*words)
    assert done.rc == 0, done.stderr
    assert done.stderr.count(f"skipped in photos: {TOLD}") == 1
    assert "skipped in" not in run(*words, "-q").stderr


# A working folder that was deleted

GONE = """
import os, sys
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
from hookscope.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "rc", "said"),
    [
        (["show", f"{DIGITS}/five.safetensors"], 0, ""),
        (["show", f"{DIGITS}/features"], 0, ""),
        (["config"], 0, ""),
        pytest.param(["models", "res*"], 0, "", marks=needs_list),
        (["verify", f"{DIGITS}/features"], 0, ""),
        (["export", f"{DIGITS}/five.safetensors", "-o", "{}/a.npz"], 0, "wrote "),
        (["report", f"{DIGITS}/five.safetensors", "-o", "{}/a.html"], 0, "wrote "),
        (["report", f"{DIGITS}/five.safetensors"], 1, "was deleted"),
        (["tree", "resnet18"], 1, "was deleted"),
        (["tree", "net.py:Net"], 2, "'net.py'"),
    ],
)
def test_in_a_deleted_folder_whole_paths_work(
    clean_environment, tmp_path: Path, words: list[str], rc: int, said: str
) -> None:
    words = [word.format(tmp_path) for word in words]
    done = run_python("-c", GONE, *words, cwd=tmp_path, env=clean_environment, status=rc)
    assert said in done.stderr
    assert "Traceback" not in done.stderr and "Unexpected" not in done.stderr
