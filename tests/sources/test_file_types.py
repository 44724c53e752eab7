"""The type of a file is detected from its content, quickly and without running code."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from hookscope.errors import InputError
from hookscope.files.file_types import check_is_image, describe_file
from hookscope.files.pickle_scan import DamagedPickle, list_globals
from tests.refusals import refused

Write = Callable[[Path], object]
STATE = {"fc.weight": torch.ones(2, 2), "fc.bias": torch.zeros(2)}


class Marked:
    """An object whose unpickling would leave a file behind."""

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, ("ran", "w")


def saved(content: object, **options: Any) -> Write:
    return lambda path: torch.save(content, path, **options)


def holding(data: bytes) -> Write:
    return lambda path: path.write_bytes(data)


def cut(write: Write, length: int) -> Write:
    def write_part(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[:length])

    return write_part


def zipped(*names: str) -> Write:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "x")

    return write


def varint(value: int) -> bytes:
    low = bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
    return low + varint(value >> 7) if value > 0x7F else low


def onnx(producer: bytes = b"pytorch") -> bytes:
    """An ONNX model as protobuf: version 9, who made it, a graph, an operator set."""
    graph = b"\x12\x04main" + bytes(300)
    texts = ((0x12, producer), (0x1A, b"2.15"), (0x3A, graph), (0x42, b"\x10\x14"))
    return b"\x08\x09" + b"".join(bytes([tag]) + varint(len(t)) + t for tag, t in texts)


def patched(write: Write, place: int, byte: int) -> Write:
    """The archive with one byte of its first directory entry changed."""

    def change(path: Path) -> None:
        write(path)
        data = bytearray(path.read_bytes())
        data[data.index(b"PK\x01\x02") + place] = byte
        path.write_bytes(data)

    return change


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


ONNX = onnx()
OLD = {"_use_new_zipfile_serialization": False}
HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()

KINDS: list[tuple[str, Write, str, str]] = [
    ("empty", holding(b""), "an empty file", "again"),
    ("state dict", saved(STATE), "a pickled checkpoint", "--weights"),
    ("old state dict", saved(STATE, **OLD), "a pickled checkpoint", "--weights"),
    ("nested", saved({"epoch": 1, "state_dict": STATE}), "a pickled checkpoint", "--weights"),
    ("numpy", saved({"a": np.ones(3), "b": np.float64(2)}), "a pickled checkpoint", "--weights"),
    ("parameter", saved(torch.nn.Parameter(torch.ones(2))), "a pickled checkpoint", "--weights"),
    ("plain pickle", holding(pickle.dumps({"a": 1})), "a pickled checkpoint", "--weights"),
    ("module", saved(torch.nn.Linear(2, 2)), "(torch.nn.modules.linear.Linear)", "would run code"),
    ("old module", saved(torch.nn.ReLU(), **OLD), "activation.ReLU)", "FILE.py:NAME"),
    ("new pickle", saved(torch.nn.ReLU(), pickle_protocol=4), "activation.ReLU)", "would run code"),
    ("arguments", saved({"args": argparse.Namespace()}), "(argparse.Namespace)", "state_dict()"),
    ("code", saved(Marked()), "io.open", "would run code"),
    ("cut zip", cut(saved(STATE), 300), "cut-off", "again"),
    ("strange zip", patched(saved(STATE), 6, 255), "cut-off", "again"),
    ("no names", patched(saved(STATE), 46, 255), "cut-off", "again"),
    ("endless", holding(b"\x80\x04\x8e" + b"\x7f" * 8), "64", "Save"),
    ("cut old", cut(saved(STATE, **OLD), 150), "cut-off", "again"),
    ("safetensors", lambda path: save_file(STATE, path), "safetensors", "--weights"),
    ("cut safetensors", holding(struct.pack("<Q", 900) + HEADER), "cut-off header", "again"),
    ("torn safetensors", holding(struct.pack("<Q", 9) + HEADER), "damaged or cut-off", "again"),
    ("onnx", holding(ONNX), "an ONNX file", "as the model"),
    ("long onnx", holding(onnx(b"p" * 200)), "an ONNX file", "as the model"),
    ("no onnx", holding(b"\x08\x09\xff\xff" + ONNX[4:]), "unknown", "FILE.py:NAME"),
    ("image", lambda path: Image.new("RGB", (2, 2)).save(path, "PNG"), "an image", "--input"),
    ("bitmap", lambda path: Image.new("RGB", (2, 2)).save(path, "BMP"), "an image", "--input"),
    ("webp", lambda path: Image.new("RGB", (2, 2)).save(path, "WEBP"), "an image", "--input"),
    ("sound", holding(b"RIFF\x24\0\0\0WAVEfmt "), "an audio file", "--input"),
    ("video", holding(b"\0\0\0\x1cftypisom"), "a video file", "--input"),
    ("array", lambda path: path.write_bytes(npy(np.ones(3))), "saved by numpy (.npy)", "--input"),
    ("arrays", zipped("x.npy", "y.npy"), "saved by numpy (.npz)", "--input"),
    ("text", holding(b"BMW and other words"), "a text file", "FILE.py:NAME"),
    ("long text", holding("né à la forêt ".encode() * 90), "a text file", "FILE.py:NAME"),
    ("bytes", holding(b"\1\2"), "unknown", "FILE.py:NAME"),
    ("zip", zipped("notes.txt"), "weights", "FILE.py:NAME"),
    ("script", zipped("net/data.pkl", "net/code/net.py"), "a TorchScript archive", "as the model"),
    ("program", zipped("a/models/model.json", "a/version"), "by torch.export", "as the model"),
    ("a project", zipped("net/models/a.json", "net/code/a.py"), "weights", "FILE.py"),
    ("old program", zipped("serialized_exported_program.json"), "torch.export", "as the model"),
    ("compiled", zipped("net/data/aotinductor/model/a.so"), "AOTInductor", "compiled from"),
]


@pytest.mark.parametrize("ending", [".bin", ".png"])
@pytest.mark.parametrize("row", KINDS, ids=[row[0] for row in KINDS])
def test_a_file_is_told_for_what_it_is_under_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: tuple[str, Write, str, str], ending: str
) -> None:
    _, write, kind, repair = row
    monkeypatch.chdir(tmp_path)
    path = Path(f"file{ending}")
    write(path)
    description, advice = describe_file(str(path))
    assert kind in description
    assert repair in advice
    assert not Path("ran").exists()


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    description, advice = describe_file(str(tmp_path))  # a folder, as nothing is kept from root
    assert "cannot be read" in description
    assert "permissions" in advice


def test_looking_reads_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "big.pt"
    torch.save({"a": torch.zeros(2**20)}, path)
    with path.open("r+b") as file:  # what lies in the middle is the tensor
        file.seek(2**20)
        file.write(b"damaged")
    assert describe_file(str(path))[0] == "a pickled checkpoint"


@pytest.mark.parametrize("protocol", range(6))
def test_the_names_that_a_pickle_calls_are_read_off_every_protocol(protocol: int) -> None:
    data = pickle.dumps([Marked(), argparse.Namespace(a=Marked())], protocol)
    assert list_globals(io.BytesIO(data))[0] in ("io.open", "_io.open", "__builtin__.open")
    assert "argparse.Namespace" in list_globals(io.BytesIO(data))
    with pytest.raises(DamagedPickle):
        list_globals(io.BytesIO(b"\x80\x04no pickle"))


@pytest.mark.parametrize(
    ("file", "data", "wrong"),
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
    tmp_path: Path, file: str, data: bytes, wrong: bool
) -> None:
    path = tmp_path / file
    path.write_bytes(data)
    if not wrong:
        check_is_image(str(path))
        return
    with refused(InputError, "image", hint="PNG"):
        check_is_image(str(path))
