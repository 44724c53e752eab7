"""Files are opened where the Python classes they were made from do not exist."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hookscope
from tests.sources.torchscript.examples import Example, saved
from tests.sources.torchscript.tables import EXAMPLES


def plain(value: object) -> bool:
    """Whether a value can be sent to a process that knows no classes of ours."""
    if isinstance(value, tuple | list):
        return type(value) in (tuple, list) and all(map(plain, value))
    if isinstance(value, dict):
        return all(map(plain, value.values()))
    return value is None or isinstance(value, int | float | complex | str | torch.Tensor)


def compared(examples: dict[str, Example], folder: Path) -> dict[str, str]:
    calls = {}
    for name, example in examples.items():
        saved(example, folder / f"{name}.pt")
        calls[name] = (example.method, example.calls)
    torch.save(calls, folder / "calls.pt")
    done = subprocess.run(
        [sys.executable, "-m", "tests.sources.torchscript.compare_files", str(folder)],
        cwd=Path(hookscope.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_process_without_the_classes_gives_the_same(tmp_path: Path) -> None:
    wanted = {
        name: example
        for name, example in EXAMPLES.items()
        if example.fresh and all(map(plain, example.calls))
    }
    assert len(wanted) > 250
    assert compared(wanted, tmp_path) == {}
