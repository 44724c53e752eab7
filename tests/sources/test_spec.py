"""The grammar of model words, shapes and assignments; what a file looks like."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from hookscope.errors import InputError, ModelError, RequestError
from hookscope.spec import (
    ModelSpec,
    describe_file,
    parse_assignments,
    parse_model,
    parse_shape,
    refuse_other_than_image,
)


def test_a_plain_name_is_torchvisions_even_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "resnet18").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_model("resnet18") == ModelSpec("torchvision", "resnet18", "", "resnet18")


@pytest.mark.parametrize("name", ["", "Net"])
def test_a_python_file_may_name_its_model(tmp_path: Path, name: str) -> None:
    path = tmp_path / "my:net.py"  # as after a Windows drive letter
    path.touch()
    word = f"{path}:{name}" if name else str(path)
    assert parse_model(word) == ModelSpec("file", word, str(path), name)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("", "An empty word"),
        ("  ", "An empty word"),
        ("nett.py", "There is no file 'nett.py'"),
        ("nett.py:Net", "There is no file 'nett.py'"),
        ("net.py:", "'' is no name"),
        ("net.py:a.b", "'a.b' is no name"),
        (".", "is a folder"),
        ("runs/last.pth", "There is no file 'runs/last.pth'"),
        ("last.safetensors", "There is no file"),
        ("timm:resnet18", "no source of models called 'timm'"),
        ("C:\\nets\\net.py:Net", "There is no file 'C:\\\\nets\\\\net.py'"),
        ("C:\\nets\\last.pth", "There is no file"),
    ],
)
def test_a_word_that_cannot_be_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str
) -> None:
    (tmp_path / "net.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        parse_model(word)
    assert message in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_a_mistyped_file_is_answered_with_near_ones(tmp_path: Path) -> None:
    (tmp_path / "mynet.py").touch()
    with pytest.raises(ModelError, match=r"Did you mean mynet\.py"):
        parse_model(f"{tmp_path}/mynets.py:Net")


class Tiny(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)


def write(kind: str, path: Path) -> None:
    if kind == "state dict":
        torch.save(Tiny().state_dict(), path)
    elif kind == "old state dict":
        torch.save(Tiny().state_dict(), path, _use_new_zipfile_serialization=False)
    elif kind == "torch.export":
        torch.export.save(torch.export.export(Tiny(), (torch.ones(1, 2),)), path)
    elif kind == "safetensors":
        save_file(Tiny().state_dict(), path)
    elif kind == "cut zip":
        torch.save(Tiny().state_dict(), path)
        path.write_bytes(path.read_bytes()[:300])
    elif kind == "image":
        Image.new("RGB", (2, 2)).save(path, "PNG")
    else:
        path.write_bytes(
            {"empty": b"", "onnx": b"\x08\x07\x12\x07pytorch", "text": b"hello", "bytes": b"\1\2"}[
                kind
            ]
        )


@pytest.mark.parametrize(
    ("kind", "file", "expected", "repair"),
    [
        ("state dict", "a.pth", "a pickled checkpoint", "--weights"),
        ("old state dict", "a.bin", "a pickled checkpoint", "--weights"),
        ("torch.export", "a.pt2", "torch.export", "does not open such files"),
        ("safetensors", "a.safetensors", "a safetensors file", "--weights"),
        ("cut zip", "a.pt", "damaged or cut-off", "again"),
        ("image", "a.png", "an image", "--input"),
        ("empty", "a.pth", "an empty file", "again"),
        ("onnx", "a.onnx", "an ONNX graph", "does not open such files"),
        ("text", "a.txt", "a text file", "FILE.py:NAME"),
        ("bytes", "a.dat", "no kind that hookscope knows", "FILE.py:NAME"),
    ],
)
def test_a_file_of_another_kind_is_told_for_what_it_is(
    tmp_path: Path, kind: str, file: str, expected: str, repair: str
) -> None:
    path = tmp_path / file
    write(kind, path)
    with pytest.raises(ModelError) as caught:
        parse_model(str(path))
    assert expected in caught.value.message
    assert repair in caught.value.hint


def test_kinds_are_told_by_content_and_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "net.dat"
    write("safetensors", path)
    assert "safetensors" in describe_file(str(path))[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_is_told_from_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.jit.save(torch.jit.trace(Tiny(), torch.ones(1, 2)), str(path))
    with pytest.raises(ModelError, match="is a TorchScript archive"):
        parse_model(str(path))


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.sampled_from("xX,×"))
def test_shapes_are_read_as_they_are_written(lengths: list[int], between: str) -> None:
    assert parse_shape(between.join(map(str, lengths))) == tuple(lengths)


@pytest.mark.parametrize("text", ["", "x", "1x", "1x0", "1x-3", "1x2.5", "axb", "1 3"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no shape"):
        parse_shape(text)


def test_assignments_keep_their_text() -> None:
    assert parse_assignments(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("pairs", [["width"], ["=3"], ["1a=3"], ["a-b=3"], ["a=1", "a=2"]])
def test_what_is_no_assignment_is_refused(pairs: list[str]) -> None:
    with pytest.raises(RequestError):
        parse_assignments(pairs)


@pytest.mark.parametrize(
    ("file", "data", "refused"),
    [
        ("notes.png", b"just some words", True),
        ("w.pth", b"\x80\x02}q\0", True),
        ("a.zip", b"PK\x05\x06" + bytes(18), True),
        ("a.png", b"\x89PNG\r\n", False),
        ("a.png", b"P3\n2 2\n255\n", False),
        ("a.xbm", b"#define im_width 3", False),
        ("a.avif", b"\0\0\0 ftypavif", False),
    ],
)
def test_a_file_that_begins_as_no_image_is_refused(
    tmp_path: Path, file: str, data: bytes, refused: bool
) -> None:
    path = tmp_path / file
    path.write_bytes(data)
    if not refused:
        refuse_other_than_image(str(path))
        return
    with pytest.raises(InputError, match="is not an image") as caught:
        refuse_other_than_image(str(path))
    assert "PNG" in caught.value.hint
