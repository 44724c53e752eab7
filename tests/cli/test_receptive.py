"""``hookscope tree --receptive``."""

from __future__ import annotations

import re

MODEL = """
import torch
from torch import nn

def words():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))

def net():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Conv2d(2, 1, 3))

def example_input():
    return torch.zeros(1, 5, dtype=torch.long)
"""


def test_the_columns_have_size_stride_and_centre(run, tmp_path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    done = run("tree", "net.py:net", "--receptive", "--shape", "1x1x20x24", cwd=tmp_path)
    assert done.rc == 0, done.stderr
    header, *rows = (re.split(r"\s{2,}", line) for line in done.stdout.splitlines()[:-1])
    found = [
        [dict(zip(header, row, strict=True))[k] for k in ("field", "stride", "centre")]
        for row in rows
    ]
    assert found[1:] == [
        ["3x3", "1x1", "1x1"],
        ["4x4", "2x2", "1.5x1.5"],
        ["8x8", "2x2", "3.5x3.5"],
    ]
    assert "1x1x20x24" in done.stderr
