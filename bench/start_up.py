"""What people type most often, beside importing torch in a process of its own."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from bench.processes import HOOKSCOPE, Cost, pairs, python

IMPORT_TORCH = python("import torch")
# As the shell asks for completions; ``exec`` adds the start of one interpreter.
_ASK = "import os; os.execvpe({command[0]!r}, {command!r}, os.environ | {request!r})"
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))
"""


def of_file(suffix: str, count: int) -> list[tuple[Cost, Cost]]:
    """List a file of resnet18 a second time: scripted, exported, or its weights."""
    import torch
    import torchvision
    from safetensors.torch import save_file

    model = torchvision.models.resnet18(weights=None).eval()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(Path(folder, f"resnet18{suffix}"))
        if suffix == ".pt":
            torch.jit.script(model).save(path)
        elif suffix == ".pt2":
            torch.export.save(torch.export.export(model, (torch.zeros(1, 3, 64, 64),)), path)
        else:
            save_file(model.state_dict(), path)
        return pairs((*HOOKSCOPE, "tree", path), IMPORT_TORCH, count)


def of_own_model(command: str, count: int) -> list[tuple[Cost, Cost]]:
    """Run a command on a small model in a file of one's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "net.py").write_text(NET, encoding="utf-8")
        words = (command, f"{folder}/net.py:Net", "--shape", "1x3x64x64", "--no-output")
        return pairs((*HOOKSCOPE, *words), IMPORT_TORCH, count)


def completion(count: int) -> list[tuple[Cost, Cost]]:
    """Complete the name of a layer, as bash asks for it."""
    request = {
        "_HOOKSCOPE_COMPLETE": "bash_complete",
        "COMP_WORDS": "hookscope capture --layer layer3",
        "COMP_CWORD": "3",
    }
    asking = (sys.executable, "-c", _ASK.format(request=request, command=HOOKSCOPE))
    return pairs(asking, IMPORT_TORCH, count)
