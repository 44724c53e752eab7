"""The largest model of torchvision's with weights from a file: what memory that takes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.processes import HOOKSCOPE, Cost, cost, python

MODEL, SIDE = "vit_h_14", 518

WRITE = """
import torch, torchvision
from safetensors.torch import save_file
model = torchvision.models.get_model({model!r}, weights=None, image_size={side})
save_file(model.state_dict(), {path!r})
"""
PLAIN = """
import torch, torchvision
from safetensors.torch import load_file
model = torchvision.models.get_model({model!r}, weights=None, image_size={side}).eval()
model.load_state_dict(load_file({path!r}))
with torch.no_grad():
    model(torch.randn(1, 3, {side}, {side}))
"""


def filling() -> Iterator[tuple[Cost, Cost]]:
    """Measure a capture with weights from a file against building, loading and running by hand.

    Once, since it takes a minute, and memory hardly differs from run to run.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "weights.safetensors")
        cost(python(WRITE.format(model=MODEL, side=SIDE, path=path)))
        ours = (*HOOKSCOPE, "capture", MODEL, "--weights", path, "--layer", "heads")
        yield cost(ours), cost(python(PLAIN.format(model=MODEL, side=SIDE, path=path)))
