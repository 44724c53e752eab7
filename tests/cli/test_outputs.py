"""The output file: its default name, and which files may be replaced."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hookscope.errors import RequestError
from hookscope.files import output_path as outputs


def write_safetensors(path: Path, metadata: dict[str, str] | None) -> None:
    header = json.dumps({} if metadata is None else {"__metadata__": metadata}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def test_a_new_file_may_be_written(tmp_path: Path) -> None:
    assert outputs.check_output(tmp_path / "new.safetensors") is False


def test_a_file_of_ours_may_be_replaced(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "ours", {"hookscope": "{}"})
    assert outputs.check_output(tmp_path / "ours") is True


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        b"\xff" * 8,
        b"\xff" * 100,
        (10).to_bytes(8, "little") + b"{}",
        (9).to_bytes(8, "little") + b"[1, 2, 3]",
        (23).to_bytes(8, "little") + b'{"__metadata__": "hook"}',
        (3).to_bytes(8, "little") + b"\xff\xff\xff",
        (10**5).to_bytes(8, "little") + b"[" * 10**5,
    ],
    ids=range(9),
)
def test_any_other_file_needs_force(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "theirs"
    file.write_bytes(content)
    with pytest.raises(RequestError, match="by hookscope") as caught:
        outputs.check_output(file)
    assert "--force" in caught.value.hint
    assert outputs.check_output(file, force=True) is True
    assert file.read_bytes() == content


def test_safetensors_of_another_program_need_force(tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        write_safetensors(tmp_path / "weights.safetensors", metadata)
        with pytest.raises(RequestError, match="by hookscope"):
            outputs.check_output(tmp_path / "weights.safetensors")


def test_folders_that_cannot_take_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, message in [
        (tmp_path, "is a folder"),
        (Path("-"), "cannot be '-'"),
        (tmp_path / "no" / "x.safetensors", "does not exist"),
        (tmp_path / "file" / "x.safetensors", "not a folder"),
    ]:
        with pytest.raises(RequestError, match=message):
            outputs.check_output(path, force=True)


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="permissions do not bind this user"
)
def test_an_unwritable_folder_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RequestError, match="is not writable"):
            outputs.check_output(tmp_path / "x.safetensors")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix device")
def test_a_device_is_never_replaced() -> None:
    with pytest.raises(RequestError, match="regular file"):
        outputs.check_output(Path("/dev/null"), force=True)


@pytest.mark.slow
def test_capture_keeps_a_file_that_is_not_its_own(run, refused, tmp_path: Path, repo: Path) -> None:
    word = f"{repo / 'sample_models' / 'two_steps.py'}:TwoSteps"
    file = tmp_path / "work" / "TwoSteps.capture.safetensors"
    file.parent.mkdir()
    file.write_text("a diary")
    assert "by hookscope" in refused("capture", word)
    assert file.read_text() == "a diary"
    forced = run("capture", word, "--force")
    assert forced.rc == 0, forced.stderr
    first = file.read_bytes()
    again = run("capture", word)
    assert again.rc == 0
    assert "replacing" in again.stderr
    assert again.stdout == forced.stdout
    assert file.read_bytes() == first


def test_a_result_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text(f'{{"{outputs.MARK}": "0.1"}}')
    assert outputs.check_output(file, suffix=".json") is True
    with pytest.raises(RequestError, match="another kind"):
        outputs.check_output(file)
