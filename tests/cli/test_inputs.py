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
