"""Signals that ask a command to end: it cleans up as after Ctrl-C, and its status names them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.processes import COMMAND, end_by_signal, start_python

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
    line, begun = (*COMMAND, *words), folder / "begun"
    return start_python(*line, cwd=folder, env=environment, until=begun.exists, before=before)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_interrupts_a_command(
    clean_environment, tmp_path: Path, number: signal.Signals
) -> None:
    done = end_by_signal(begin(tmp_path, clean_environment), number)
    assert done.rc == 128 + number
    assert done.stderr.splitlines()[-1] == "Interrupted; nothing was written."
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.safetensors"))
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.slow
def test_an_ignored_signal_stays_ignored(clean_environment, tmp_path: Path) -> None:
    (tmp_path / "short").touch()
    process = begin(tmp_path, clean_environment, "nohup")
    done = end_by_signal(process, signal.SIGHUP)
    assert done.rc == 0, done.stderr
    assert (tmp_path / "out.safetensors").exists()
