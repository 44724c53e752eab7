"""Signals that ask a command to end: it cleans up as after Ctrl-C, and its status names them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WAITING = """
import time
from pathlib import Path
from torch import nn

class Waiting(nn.Module):
    def forward(self, x):
        Path("begun").touch()
        time.sleep(600 if not Path("short").exists() else 1)
        return x
"""


def begin(folder: Path, environment: dict[str, str], *before: str) -> subprocess.Popen[str]:
    """Start a capture, and wait until its model runs."""
    (folder / "waiting.py").write_text(WAITING)
    words = ("capture", "waiting.py:Waiting", "--shape", "1x2", "-o", "out.safetensors")
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "hookscope", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (folder / "begun").exists():
        time.sleep(0.02)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_interrupts_a_command(
    clean_environment, tmp_path: Path, number: signal.Signals
) -> None:
    process = begin(tmp_path, clean_environment)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert said.splitlines()[-1] == "Interrupted; nothing was written."
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*.safetensors"))
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.slow
def test_an_ignored_signal_stays_ignored(clean_environment, tmp_path: Path) -> None:
    (tmp_path / "short").touch()
    process = begin(tmp_path, clean_environment, "nohup")
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert (tmp_path / "out.safetensors").exists()
