"""Commands that are killed at any moment leave the old file or the whole new one, never a part."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.extraction.handwritten_features import ramp, write_features

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow]
KILLS = 20
BIG = """
import torch
from torch import nn

class Big(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))

def example_input():
    return torch.ones(4, 3, 256, 256)
"""
COMMANDS = {
    "capture": ("capture", "big.py:Big", "-o", "out.safetensors"),
    "grads": ("grads", "big.py:Big", "--loss", "sum", "-o", "out.safetensors"),
    "report": ("report", "given.safetensors", "-o", "out.html"),
    "plot": ("plot", "given.safetensors", "conv", "-o", "out.png"),
    "export": ("export", "features/", "-o", "out.safetensors"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_moment_a_command_leaves_the_old_file_or_the_new_one(
    run, clean_environment, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "big.py").write_text(BIG)
    write_features(folder / "features", {"a/output": ramp(500, 20_000)}, 100)
    if "given.safetensors" in COMMANDS[name]:
        assert run("capture", "big.py:Big", "-o", "given.safetensors").rc == 0
    words = (*COMMANDS[name], "--force")
    target = folder / words[words.index("-o") + 1]
    begun = time.monotonic()
    done = run(*words)
    lasted = time.monotonic() - begun
    assert done.rc == 0, done.stderr
    whole, others = target.read_bytes(), {path.name for path in folder.iterdir()}
    dice, killed = random.Random(name), 0
    for attempt in range(KILLS):
        old = b"earlier" if attempt % 2 else None
        target.unlink(missing_ok=True)
        if old is not None:
            target.write_bytes(old)
        command = [sys.executable, "-m", "hookscope", *words]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=clean_environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if attempt % 4 < 2:  # at any moment
            time.sleep(dice.random() * lasted)
        else:  # while the file is being written
            before = set(folder.glob(".*.part"))
            while process.poll() is None and not set(folder.glob(".*.part")) - before:
                time.sleep(0.0005)
            time.sleep(dice.random() * 0.02)
        process.kill()
        killed += process.wait() != 0
        found = target.read_bytes() if target.exists() else None
        assert found in (old, whole), f"{len(found or b'')} bytes of {len(whole)}"
        litter = {path.name for path in folder.iterdir()} - others - {target.name}
        assert all(part.startswith(f".{target.name}.") for part in litter), litter
    assert killed > KILLS // 2
    done = run(*words)
    assert done.rc == 0, done.stderr
    assert target.read_bytes() == whole
    assert not list(folder.glob(".*.part"))
