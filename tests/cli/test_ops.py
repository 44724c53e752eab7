"""``--ops`` and ``--attention`` on the command line: what is written, said and returned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.conftest import REPO

SAMPLES = REPO / "sample_models"

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class Attending(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.dropout = dropout

    def forward(self, x):
        x = self.mix(x)
        seen = (x @ x.mT).softmax(-1) @ x
        return seen + F.scaled_dot_product_attention(x, x, x, dropout_p=self.dropout)

def example_input():
    return torch.linspace(-1, 1, 24).view(2, 3, 4)
"""


def keys(file: Path) -> set[str]:
    with safe_open(file, framework="pt") as opened:
        return set(opened.keys())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["digits.py:trained", "digits_scripted.pt", "digits_exported.pt2"])
def test_ops_are_in_the_file_and_the_table(run, tmp_path: Path, form: str) -> None:
    done = run("capture", f"{SAMPLES}/{form}", "--layer", ".", "--ops", "-o", "x")
    assert done.rc == 0, done.stderr
    assert keys(tmp_path / "work" / "x") == {"./flatten", "./output"}
    assert " flatten " in done.stdout
    assert "--ops" in done.stderr.splitlines()[-1]  # the command that goes on from here
    done = run("grads", f"{SAMPLES}/{form}", "--layer", ".", "--ops", "-o", "y")
    assert done.rc == 0, done.stderr
    assert "./flatten.grad" in keys(tmp_path / "work" / "y")


@pytest.mark.slow
def test_attention_tells_where_it_comes_from(run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (work / "model.py").write_text(MODEL)
    done = run("capture", "model.py:Attending", "--layer", ".", "--attention", "-o", "x")
    assert done.rc == 0, done.stderr
    assert keys(work / "x") == {"./attention", "./attention:2", "./output"}
    assert "Attention: 1 read from the model; 1 recomputed" in done.stdout
    assert "(limit 1e-04)" in done.stdout

    dropping = ("--model-arg", "dropout=0.5")
    done = run("capture", "model.py:Attending", *dropping, "--layer", ".", "--attention", "--json")
    assert done.rc == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["attention"] == [{"from": "a softmax in the model", "key": "./attention"}]
    [absent] = found["absent"]
    assert (absent["what"], absent["kind"]) == ("attention:2", "attention")
    assert "dropout 0.5" in absent["reason"]

    done = run("capture", "model.py:Attending", "--layer", "mix", "--attention")
    assert "Attention: none" in done.stdout
