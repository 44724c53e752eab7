"""Inputs of every kind, as they are typed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookscope.cli.main import main
from hookscope.views.html.page_header import original_command

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids, scale=None):
        x = self.table(ids)
        return self.head(x if scale is None else x * scale)

def tokenize(texts):
    return {"ids": torch.tensor([[ord(c) % 16 for c in text] for text in texts])}

def batches():
    yield torch.ones(2, 3, dtype=torch.int64)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "net.py").write_text(MODEL)
    np.save(work / "ids.npy", np.arange(6).reshape(1, 6))
    np.savez(work / "both.npz", ids=np.arange(6).reshape(1, 6), scale=np.ones(4))
    (work / "args.json").write_text('{"ids": {"file": "ids.npy"}, "scale": {"tensor": 2.0}}')
    return work


@pytest.fixture
def typed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Type a command in this process, which has torch already; its JSON, or what it said."""
    monkeypatch.chdir(folder)

    def run(*words: str, status: int = 0) -> Any:
        with pytest.raises(SystemExit) as end:
            main([*words, "--json", "--no-config"])
        out, err = capsys.readouterr()
        assert end.value.code == status, err
        return json.loads(out) if not status else err

    return run


@pytest.mark.parametrize(
    "words",
    [
        "--input ids=ids.npy --input scale=random:4",
        "--input both.npz",
        "--input args.json",
        "--input 'text:a b'",
        "--input net.py:batches",
        "--input ids.npy --input ids.npy",
    ],
)
def test_the_command_that_a_file_tells_makes_the_file_again(typed, words: str) -> None:
    metadata = typed("capture", "net.py:Net", *shlex.split(words))
    before = Path("Net.capture.safetensors").read_bytes()
    line = original_command(metadata)
    assert line == f"hookscope capture net.py:Net {words}"
    typed(*shlex.split(line)[1:])
    assert Path("Net.capture.safetensors").read_bytes() == before


def test_a_variable_may_hold_a_word_with_colons(parse, monkeypatch) -> None:
    for text, words in {
        "ints:1x3:0-16": ["ints:1x3:0-16"],
        "x=text:a:b": ["x=text:a:b"],
        "random:1x3": ["random:1x3"],
    }.items():
        monkeypatch.setenv("HOOKSCOPE_CAPTURE_INPUT", text)
        assert [spec.text for spec in parse("capture").params["input"]] == words


def test_a_capture_is_not_replaced_by_what_is_made_of_it(typed) -> None:
    typed("capture", "net.py:Net", "--input", "ids.npy")
    own = "Net.capture.safetensors:table/output"
    assert "is an input of this command" in typed("capture", "net.py:Net", "--input", own, status=2)


def test_grads_and_trace_take_the_same_words(typed) -> None:
    typed("grads", "net.py:Net", "--loss", "sum", "--input", "both.npz")
    typed("trace", "net.py:Net", "--input", "ids=ids.npy")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("capture --input ids=missing.npy", "There is no file 'missing.npy'"),
        ("capture --input random:3y4", "'3y4' is not a valid shape"),
        ("capture --input ids.npy --size 8", "--size is for images, and no image is given"),
        ("capture --input broken.npz", "is a text file, not an array"),
        ("capture --input pickled.pt", "is a pickled Python object"),
        ("capture --input cut.safetensors", "damaged or cut-off header"),
        ("capture --input nope.py:f", "There is no file 'nope.py'"),
        ("capture --input notes.md", "is not an image: it looks like a text file"),
        ("capture --generate 0", "0 is not in the range"),
    ],
)
def test_a_wrong_word_is_refused_at_once(refused, folder, words: str, message: str) -> None:
    for name in ("broken.npz", "notes.md"):
        (folder / name).write_text("just some words\n")
    (folder / "pickled.pt").write_bytes(
        b"\x80\x04\x95\x12\0\0\0\0\0\0\0\x8c\x05mynet\x8c\x03Net\x93."
    )
    (folder / "cut.safetensors").write_bytes((900).to_bytes(8, "little") + b'{"a": {}}')
    assert message in refused(*words.split())
