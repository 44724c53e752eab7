"""Names that would forge lines, colours or an order of reading are escaped in every output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import hookscope
from hookscope.cli.console import Console
from hookscope.errors import HookscopeError, LayerError
from hookscope.escapes import encodable, visible, visible_lines
from hookscope.files import strict_json

FORGED = "\nError: forged"
NAMES = [
    *("bi\u202edi", f"new{FORGED}", "esc\x1b[31mred", "lone\udc80", "tab\tx", "iso\u2066x"),
    *("sep\u2028x", "back\r\bx", "csi\x9b31m", "<script>alert(1)</script>", "$x^2$"),
]
NETWORK = f"""
import torch
from torch import nn

NAMES = {NAMES!r}

class Kind(nn.Conv2d): ...
Kind.__name__ = Kind.__qualname__ = "Ki\\u202end" + {FORGED!r}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for name in NAMES:
            self.add_module(name, Kind(1, 1, 3, padding=1))
        self.fc = nn.Linear(64, 2)

    def forward(self, x):
        for name in NAMES:
            x = torch.relu(getattr(self, name)(x))
        return self.fc(x.flatten(1))

def example_input():
    return torch.ones(1, 1, 8, 8)
"""
COMMANDS = [
    "tree net.py:Net",
    "tree net.py:Net --json",
    "capture net.py:Net -o a.safetensors",
    "capture net.py:Net -o a.npz --json",
    "capture net.py:Net --layer bidi",
    "capture net.py:Net --edit bi*=zero --compare -o b.safetensors",
    "grads net.py:Net -o g.safetensors",
    "ablate net.py:Net -o a.json",
    "trace net.py:Net --chrome t.json",
    "check net.py:Net -o c.sarif",
    "check net.py:Net -o c.xml",
    "filters net.py:Net bi* -o f.svg",
    "show a.safetensors",
    "show a.safetensors --json",
    "show a.safetensors lone*",
    "show a.safetensors nothing",
    "diff a.safetensors b.safetensors",
    "plot a.safetensors -o p.svg",
    "plot a.safetensors bi* esc* lone* --kind hist -o h.svg",
    "report a.safetensors g.safetensors -o r.html",
    "export a.safetensors -o e.npy",
    "export a.safetensors -l lone* -o e.safetensors",
]


def unseen(text: str) -> set[str]:
    return {c for c in text if not c.isprintable() and c not in "\n"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_no_output_shows_a_name_as_it_stands(run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "net.py").write_text(NETWORK, encoding="utf-8")
    for line in COMMANDS:
        done = run(*line.split())
        assert done.rc in (0, 1, 2) and "Unexpected" not in done.stderr, (line, done.stderr)
        for text in (done.stdout, done.stderr):
            assert unseen(text) == set() and FORGED not in text, line
        if "--json" in line:
            json.dumps(json.loads(done.stdout), ensure_ascii=False).encode()  # no lone surrogate
    written = {file.name for file in work.iterdir()}
    assert {"r.html", "p.svg", "h.svg", "f.svg", "c.sarif", "c.xml", "t.json", "a.json"} < written
    for name in written - {"net.py"}:
        if Path(name).suffix not in (".safetensors", ".npz"):
            text = (work / name).read_bytes().decode()
            assert unseen(text) - {"\t"} == set() and FORGED not in text, name


def test_a_lone_surrogate_in_a_name_is_recorded_stored_and_read(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("lone\udc80", nn.Linear(2, 2))
    model.add_module(r"lone\udc80", nn.Linear(2, 2))  # which looks the same
    with hookscope.record(model) as capture:
        model(torch.ones(1, 2))
    keys = [r"lone\udc80/output", r"lone\udc80~2/output", "./output"]
    assert list(capture) == keys
    for ending in ("safetensors", "npz"):
        capture.save(tmp_path / f"a.{ending}")
    loaded = hookscope.load(tmp_path / "a.safetensors")
    assert list(loaded) == keys
    assert all(torch.equal(loaded[key], capture[key]) for key in keys)
    assert np.load(tmp_path / "a.npz").files == keys
    with safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert sorted(file.keys()) == sorted(keys)
        json.loads(file.metadata()["hookscope"])["records"][0]["module"].encode()


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes there alone")
def test_names_of_files_that_are_no_text(run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    bad = os.fsdecode(b"x\nError: forged\xe2\x80\xae\xff")
    sample = Path(__file__).resolve().parents[2] / "sample_models" / "five.safetensors"
    (work / f"{bad}.safetensors").write_bytes(sample.read_bytes())
    for words, rc in [
        (("show", f"{bad}.safetensors"), 0),
        (("show", f"{bad}.safetensors", "--json"), 0),
        (("export", f"{bad}.safetensors", "-o", f"{bad}.npz"), 0),
        (("report", f"{bad}.safetensors", "-o", f"{bad}.html"), 0),
        (("show", bad), 2),
        (("capture", f"{bad}.py:Net"), 2),
        (("capture", "--input", f"{bad}.png"), 2),
        (("capture", "-o", f"{bad}/a.npz"), 2),
        (("capture", "--config", bad), 2),
        (("tree", bad), 2),
        (("tree", f"--{bad}"), 2),
        ((bad,), 2),
    ]:
        done = run(*words)
        assert done.rc == rc, done.stderr
        for text in (done.stdout, done.stderr):
            assert unseen(text) == set() and FORGED not in text, words
        if rc == 2:
            assert "\\u202e" in done.stderr and "\\udcff" in done.stderr, done.stderr


def test_an_error_is_escaped_where_it_is_made() -> None:
    error = LayerError(f"No layer {NAMES[0]}{FORGED}.", "Did you mean lone\udc80? ")
    assert str(error) == "No layer bi\\u202edi\\nError: forged.\nDid you mean lone\\udc80?"
    assert (error.message, error.hint) == tuple(str(error).split("\n"))
    assert HookscopeError("plain").args == ("plain",)


def test_notes_and_warnings_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    out = Console()
    for say in (out.note, out.warning, out.error, out.step):
        say(f"a{FORGED}\u202e\x1b[2J\tb")
    out.verbose = 1
    out.step(f"a{FORGED}\u202e")
    said = capsys.readouterr().err
    assert unseen(said) == set() and FORGED not in said
    assert len(said.splitlines()) == 4
    out.hint("two\n\tlines\x1b[31m \u202e")
    assert capsys.readouterr().err == "two\n\tlines\\x1b[31m \\u202e\n"


def test_what_is_shown_can_be_encoded() -> None:
    for name in NAMES:
        for text in (visible(name), visible_lines(name), encodable(name)):
            text.encode()
        assert unseen(visible(name)) == set()
        assert visible(visible(name)) == visible(name)
    assert encodable("plain é") == "plain é"
    text = strict_json.dumps({"lone\udc80": ["lone\udc80", 1.0]})
    assert json.loads(text) == {"lone\\udc80": ["lone\\udc80", 1.0]}
