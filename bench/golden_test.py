"""A test of pytest that compares resnet50 with its fingerprint, beside one that only runs it.

Both are whole processes: pytest, the import of torch, the model, one forward pass.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.processes import Cost, cost, pairs

TESTS = """
import torch
import torchvision

def made():
    torch.manual_seed(0)
    return torchvision.models.resnet50().eval(), torch.randn(1, 3, 224, 224)

def test_plain():
    net, x = made()
    with torch.no_grad():
        assert net(x).isfinite().all()

def test_golden(hookscope_golden):
    hookscope_golden(*made())
"""
# The plugin is loaded by its name whether or not hookscope is installed.
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
    *("-p", "no:hookscope", "-p", "hookscope.commands.pytest_plugin"),
)


def compared(count: int) -> list[tuple[Cost, Cost]]:
    """Return what the two tests took, ``count`` times in turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "test_net.py")
        path.write_text(TESTS)
        cost((*PYTEST, "--hookscope-update", f"{path}::test_golden"))
        return pairs((*PYTEST, f"{path}::test_golden"), (*PYTEST, f"{path}::test_plain"), count)
