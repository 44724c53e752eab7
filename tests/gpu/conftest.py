"""The tests of this folder run on the device that ``make test-gpu`` names, and only then."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

DEVICE = os.environ.get("HOOKSCOPE_TEST_DEVICE", "")
collect_ignore_glob = ["test_*.py"]
if DEVICE:
    collect_ignore_glob = [] if DEVICE.startswith("cuda") else ["test_on_cuda.py"]


def pytest_report_header() -> str:
    """Name the device, and what cannot be tested on it."""
    if not DEVICE:
        return ""
    on_cpu = " Memory and CUDA graphs are left out: they need cuda." if DEVICE == "cpu" else ""
    return f"device: {DEVICE}, torch {torch.__version__}.{on_cpu}"


@pytest.fixture(scope="session")
def device() -> str:
    """The device, which must be there."""
    torch.ones(1, device=DEVICE)
    return DEVICE


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """The same kernels each time, so that values can be compared bit for bit."""
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    yield
    torch.use_deterministic_algorithms(before)
