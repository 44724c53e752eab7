"""What a file of data may name: nothing outside its folder, however a reader takes the name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hookscope.errors import HookscopeError
from hookscope.files.input_list import list_entries
from hookscope.files.text_sources import text_sources
from hookscope.specs.input_spec import parse_inputs
from hookscope.specs.names_in_files import refused_name

OUTSIDE = [
    *("../secret.npy", "{top}/secret.npy", "x=../secret.npy", "../*.npy"),
    *("a/*/../../../secret.npy", "a/*/../../../notes.jsonl:text", "../notes.jsonl:text"),
    *("linked/notes.jsonl:text", "linked/*.jsonl:text", "l*/notes.jsonl:text"),
    *("lines:../notes.txt", "lines:../notes.txt:1", "lines:a/*/../../../notes*"),
    *("x=text:a/../../secret*.npy", "linked/secret.npy", "l*/secret.npy", "linked", "classes"),
    *("@list.txt", "@dangling", "-", "x=-", "hub:imdb:train", "s3://bucket/a.npy", "pipe.npy"),
    *("code.py:batch", "x=code.py:batch"),
]
OWN = ["a.npy", "x=a.npy", "a/b/*.txt", "lines:a/b/n.txt:1", "a/b/n.jsonl:text", "images"]
MADE = ["random:1x3", "ids=ints:1x4:0-9", "text:see ../the/notes", "text:s3://bucket", "ones:2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that names reach, below one with files that they must not reach."""
    own = tmp_path / "own"
    for name in ("a/b", "x=text:a", "classes/cat", "images", "empty"):
        (own / name).mkdir(parents=True)
    for name in ("secret.npy", "notes.txt", "notes.jsonl", "picture.png"):
        (tmp_path / name).write_text('{"text": "secret"}\n')
    for name in ("a.npy", "a/b/n.txt", "a/b/n.jsonl", "images/1.png", "l.txt"):
        (own / name).write_text('{"text": "own"}\n')
    (own / "linked").symlink_to(tmp_path)
    (own / "classes" / "cat" / "1.png").symlink_to(tmp_path / "picture.png")
    (own / "@dangling").symlink_to("nothing")
    (own / "dangling").write_text(f"{tmp_path}/picture.png\n")
    os.mkfifo(own / "pipe.npy")
    monkeypatch.chdir(own)
    return own


def is_refused(name: str, folder: Path) -> bool:
    return refused_name("input", [name], folder) is not None


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    assert is_refused(name.format(top=folder.parent), folder)


@pytest.mark.parametrize("name", [*OWN, *MADE])
def test_own_files_and_inputs_that_are_made_are_not_refused_and_lie_in_it(
    folder: Path, name: str
) -> None:
    assert not is_refused(name, folder)
    opened: set[str] = set()
    for read in (parse_inputs, text_sources, list_entries):
        try:
            opened |= {entry.path for entry in read([name]) or () if entry.path}
        except HookscopeError:
            continue
    assert all(Path(path).resolve().is_relative_to(folder) for path in opened)
