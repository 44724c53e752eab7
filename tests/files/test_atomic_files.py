"""A file that is replaced atomically, where the names are long or the folder goes away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hookscope.errors import StoreError
from hookscope.files.atomic_files import replacement_file, write_bytes


def test_a_scratch_folder_that_is_gone_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    match = f"Cannot write {path}"
    with pytest.raises(StoreError, match=match), replacement_file(path, "Again.") as scratch:
        shutil.rmtree(scratch.parent)
    assert path.read_text() == "old"


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127])
def test_the_longest_names_can_be_written(tmp_path: Path, name: str) -> None:
    assert write_bytes(tmp_path / name, b"12345") == 5
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"12345")]
