"""``memory`` of a training script: the step of its own model, batch and optimizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import hookscope

HEAD = """
import pathlib, sys, torch
from torch import nn
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
other = nn.Linear(2, 2)
x, y = torch.randn(256, 64), torch.zeros(256, dtype=torch.long)
print("begins")
"""
STEP = """
for _ in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    pathlib.Path("trained").touch()
"""
ADAMW = "optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)\n"


def test_the_step_is_that_of_the_script(run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + ADAMW + STEP)
    done = run("memory", "train.py", "--json", cwd=tmp_path)
    assert done.rc == 0, done.stderr
    found = json.loads(done.stdout)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    wanted = hookscope.memory(
        model, input=torch.randn(256, 64), optimizer="adamw", autocast="bfloat16"
    )
    assert (found["batch"], found["peak"]) == (256, wanted.peak)
    assert found["model"]["spec"] == "train.py"
    assert "begins" in done.stderr
    assert not (tmp_path / "trained").exists()


SECOND = "second = torch.optim.SGD(other.parameters())\n"
BOTH = "optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()])\n"
OWN = "class Mine(torch.optim.SGD): pass\noptimizer = Mine(net.parameters())\n"


@pytest.mark.parametrize(
    ("code", "options", "said", "status"),
    [
        ("if sys.argv[1:]: loss.backward()", "", "no model", 2),
        ("raise OSError('no data')\nloss.backward()", "", "line 8", 1),
        ("net(x).sum().backward()", "", "No optimizer of train.py", 2),
        (ADAMW + SECOND + STEP, "", "Sequential", 2),
        (BOTH + STEP, "", "Sequential", 2),
        (OWN + STEP, "", "Mine", 2),
        (ADAMW + STEP, "--shape 2x64", "input", 2),
    ],
)
def test_a_script_without_a_step_that_can_be_told_is_explained(
    run, tmp_path: Path, code: str, options: str, said: str, status: int
) -> None:
    (tmp_path / "train.py").write_text(HEAD + code)
    done = run("memory", "train.py", *options.split(), cwd=tmp_path)
    assert (done.rc, done.stdout) == (status, ""), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
