"""``memory`` of a training script: the step of its own model, batch and optimizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

import hookscope

SCRIPT = """
import pathlib, torch
from torch import nn
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
x, y = torch.randn(256, 64), torch.zeros(256, dtype=torch.long)
print("begins")
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
for _ in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    pathlib.Path("trained").touch()
"""


def test_the_step_is_that_of_the_script(run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
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
