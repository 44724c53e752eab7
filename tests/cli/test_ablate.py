"""``hookscope ablate`` on the command line: what it shows, writes, and goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_streams import on_unix
from tests.conftest import REPO, Run
from tests.processes import COMMAND, end_by_signal, in_terminal, start_python

DIGITS = f"{REPO}/sample_models/digits.py:trained"
FIVE = f"{REPO}/sample_models/five.png"

# Every run of it takes a while, so that a bar is shown, and leaves a mark. The eighth waits, unless
# there is a file called resumed.
SLOW = """
import os
import time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 12)
        self.drop = nn.Dropout()
        self.out = nn.Linear(12, 3)

    def forward(self, x):
        with open("runs", "a") as file:
            file.write(".")
        time.sleep(0.1)
        if os.path.getsize("runs") == 8 and not os.path.exists("resumed"):
            time.sleep(600)  # until Ctrl-C
        return self.out(self.drop(self.lin(x).relu()))

def example_input():
    return torch.ones(2, 4)
"""
WORDS = ["ablate", "slow.py:Net", "--by", "noise", "--channels", "--train"]


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "slow.py").write_text(SLOW)
    return folder


@pytest.mark.exhaustive
@on_unix
@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(slow: Path, run: Run, clean_environment) -> None:
    runs = slow / "runs"
    process = start_python(
        *(*COMMAND, *WORDS),
        cwd=slow,
        env=clean_environment,
        until=lambda: runs.exists() and runs.stat().st_size == 8,
    )
    done = end_by_signal(process)
    assert (done.rc, done.stdout) == (130, "")
    kept = len(json.loads((slow / "Net.ablate.json").read_text())["ablations"])
    assert 0 < kept < 27
    assert done.stderr.splitlines()[-1] == (
        f"Interrupted; {kept} of 27 ablations are in Net.ablate.json."
        " Run the same command to resume."
    )
    assert not [path for path in slow.iterdir() if path.suffix == ".part"]
    runs.unlink()
    (slow / "resumed").touch()
    resumed = run(*WORDS)
    assert resumed.rc == 0, resumed.stderr
    assert f"resuming: {kept} of 27 already done" in resumed.stderr
    assert "replacing" not in resumed.stderr
    assert runs.stat().st_size == 2 + 27 - kept
    whole = run(*WORDS, "-o", "whole.json")
    assert whole.stdout == resumed.stdout
    assert (slow / "whole.json").read_bytes() == (slow / "Net.ablate.json").read_bytes()


@pytest.mark.exhaustive
@on_unix
@pytest.mark.slow
def test_a_terminal_shows_a_bar_and_wipes_it(slow: Path, clean_environment) -> None:
    (slow / "resumed").touch()
    here = {"cwd": slow, "env": clean_environment, "size": (24, 60)}
    text = in_terminal(*COMMAND, *WORDS, "--no-color", **here).decode()
    before, _, after = text.partition("ablated one at a time")
    assert "ablating" in before and "/27" in before
    assert "ablating" not in after and "/27" not in after
    quiet = in_terminal(*COMMAND, *WORDS, "-q", **here).decode()
    assert "ablating" not in quiet and "27 channels" in quiet
