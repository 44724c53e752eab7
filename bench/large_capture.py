"""The memory of a capture of 1 GB, beside a capture of one of its 24 layers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.processes import HOOKSCOPE, Cost, pairs

_MODEL = """
from torch import nn

class Add(nn.Module):
    def forward(self, x):
        return x + 1

def net():
    return nn.Sequential(*(Add() for _ in range(24)))
"""
_SHAPE = "1x4x1024x2560"  # 42 MB


def capturing(count: int) -> list[tuple[Cost, Cost]]:
    """Capture all layers and one, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        model, output = Path(folder, "large.py"), Path(folder, "large.safetensors")
        model.write_text(_MODEL)
        command = (*HOOKSCOPE, "capture", f"{model}:net", "--shape", _SHAPE, "--force")
        command += ("--output", str(output), "--layer")
        return pairs((*command, "*"), (*command, "0"), count)
