"""``hookscope ablate`` on the command line: what it shows, writes, and goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_streams import on_unix
from tests.conftest import REPO, Refused, Run
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


@pytest.mark.slow
def test_a_pipe_gets_every_ablation_and_what_its_figures_mean(run: Run, tmp_path: Path) -> None:
    done = run("ablate", DIGITS, "--input", FIVE, "--channels", "--rank", "loss")
    assert done.rc == 0, done.stderr
    title, header, *lines = done.stdout.splitlines()
    assert title == "138 channels ablated one at a time (output set to zero), ranked by loss."
    figures = ["loss", "score", "output", "flipped"]
    assert header.split() == ["layer", "type", "channel", *figures, "note"]
    document = json.loads((tmp_path / "work" / "trained.ablate.json").read_text())
    for line, ablation in zip(lines, document["ablations"], strict=False):
        layer, kind, channel, *values, _ = line.split()
        place = [ablation[name] for name in ("layer", "type", "channel")]
        assert [layer, kind, int(channel)] == place
        assert [float(v) for v in values] == pytest.approx([ablation[f] for f in figures], rel=5e-6)
    assert [line.split()[0] for line in lines[138:142]] == [f"{name}:" for name in figures]
    assert done.stderr.splitlines()[-2].startswith("wrote trained.ablate.json (")
    worst = document["ablations"][0]
    edit = f"{worst['layer']}[{worst['channel']}]=zero"
    follow = f"next: hookscope capture {DIGITS} --edit '{edit}' --compare --input {FIVE}"
    assert done.stderr.splitlines()[-1] == follow


@pytest.mark.slow
def test_json_is_what_the_file_holds(run: Run, tmp_path: Path) -> None:
    done = run("ablate", DIGITS, "--json", "-q", "-o", "a.json", "--by", "mean", "--loss", "mse")
    assert (done.rc, done.stderr) == (0, "")
    document, file = json.loads(done.stdout), json.loads((tmp_path / "work/a.json").read_text())
    assert (document["schema"], document["command"], document.pop("file")) == (
        1,
        "ablate",
        "a.json",
    )
    assert file.pop("hookscope") == document["versions"]["hookscope"]
    assert document == file
    assert document["finished"] and document["clean"]["loss_name"] == "mse"
    assert [one["layer"] for one in document["left_out"]] == ["fc"]
    again = run("ablate", DIGITS, "-o", "a.json", "--by", "mean", "--loss", "mse")
    assert "replacing an earlier file" in again.stderr and "resuming" not in again.stderr


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "magic"], "'magic' is not one of"),
        (["--rank", "size"], "'size' is not one of"),
        (["-o", "mine.json"], "The file mine.json exists and was not written by hookscope."),
        (["-o", "no/where.json"], "The output folder no does not exist."),
        (["--layer", "a{b"], "has an unbalanced brace"),
    ],
)
def test_a_wrong_request_is_refused_with_status_2(
    refused, tmp_path: Path, arguments, message
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine.json").write_text('{"mine": 1}')
    assert message in refused("ablate", *arguments)


@pytest.mark.slow
def test_an_unknown_layer_is_told_with_near_names(refused: Refused) -> None:
    said = refused("ablate", DIGITS, "--layer", "conv9")
    assert "matches 'conv9'" in said and "hookscope tree" in said
