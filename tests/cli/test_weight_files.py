"""``hookscope tree`` of files of weights: what is printed, and what wrong things give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from tests.conftest import REPO, Refused, Run
from tests.processes import run_python

DIGITS = f"{REPO}/sample_models/digits.safetensors"
CAPTURE = f"{REPO}/sample_models/five.safetensors"


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model, ema = net(), net()
    checkpoint = {"model": model.state_dict(), "ema": ema.state_dict(), "epoch": 3}
    torch.save(checkpoint, tmp_path / "a.pth")
    return tmp_path / "a.pth"


def test_the_hash_is_two_lines_equal_in_every_format(run: Run, tmp_path: Path) -> None:
    state = safetensors.torch.load_file(DIGITS)
    torch.save({"state_dict": state, "optimizer": {"m": torch.ones(2)}}, tmp_path / "a.pth")
    np.savez(tmp_path / "a.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    trained = f"{REPO}/sample_models/digits.py:trained"
    paths = (DIGITS, str(tmp_path / "a.pth"), str(tmp_path / "a.npz"), trained)
    printed = {run("tree", path, "--hash").stdout for path in paths}
    [text] = printed
    (first, one), (second, other) = map(str.split, text.splitlines())
    assert (first, second) == ("architecture", "weights")
    assert len(one) == len(other) == 64
    assert one != other
    document = json.loads(run("tree", DIGITS, "--hash", "--json").stdout)
    assert (document["architecture"], document["weights"]) == (one, other)


def test_parts_are_asked_for_and_named(run: Run, refused: Refused, checkpoint: Path) -> None:
    said = refused("tree", str(checkpoint))
    for part in ("model (4 tensors), ema (4 tensors)", f"{checkpoint}#model", f"{checkpoint}#all"):
        assert part in said
    assert "2.weight" in run("tree", f"{checkpoint}#ema").stdout
    assert "epoch: 3" in run("tree", f"{checkpoint}#ema").stdout
    done = run("tree", f"{checkpoint}#emma")
    assert (done.rc, done.stderr.splitlines()[1]) == (2, f"Did you mean {checkpoint}#ema?")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shapes"], "--shapes is for models"),
        (["--type", "Linear"], "--type is for models"),
        (["--model-arg", "a=1"], "--model-arg is for models"),
        (["--mermaid"], "--mermaid is for models"),
        (["--dot"], "--dot is for models"),
        (["--hash", "--layer", "fc"], "--hash is"),
        (["--hash", "--top", "3"], "--sort and --top"),
        (["--layer", "nope"], "matches 'nope'"),
        (["--sort", "nope"], "no column 'nope'"),
    ],
)
def test_options_that_make_no_sense_are_refused(refused: Refused, options, message) -> None:
    assert message in refused("tree", DIGITS, *options)


def test_a_scripted_file_stays_a_model(run: Run) -> None:
    done = run("tree", f"{REPO}/sample_models/digits_scripted.pt", "--json")
    assert "modules" in json.loads(done.stdout)


def test_a_pickled_model_opens_without_its_code_and_with_trust_runs_it(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "mynet.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(2, 3)\n"
        "    def __setstate__(self, state):\n"
        "        super().__setstate__(state)\n"
        "        self.late = torch.nn.Parameter(torch.ones(5))\n"
        "        print('it ran')\n"
    )
    make = "import mynet, torch; torch.save(mynet.Net(), 'best.pt')"
    run_python("-c", make, cwd=tmp_path, status=0)
    done = run("tree", str(tmp_path / "best.pt"))
    assert done.rc == 0
    assert "fc.weight" in done.stdout
    assert "late" not in done.stdout
    assert "Python objects (mynet.Net, torch.nn.modules.linear.Linear)" in done.stdout
    assert "no code" in done.stdout
    trusted = run("tree", str(tmp_path / "best.pt"), "--trust")
    assert trusted.rc == 0
    assert "late" in trusted.stdout
    assert "it ran" in trusted.stderr
    assert "runs code: it names mynet.Net" in trusted.stderr
    for words in (
        *(["show", "BEST"], ["show", "BEST", "late"], ["plot", "BEST", "late"]),
        *(["report", "BEST"], ["diff", "BEST", "BEST"], ["check", "BEST"]),
    ):
        done = run(*(str(tmp_path / "best.pt") if x == "BEST" else x for x in words), "--trust")
        assert done.rc == 0, done.stderr
        assert "it ran" in done.stderr and "runs code: it names mynet.Net" in done.stderr, words
    (tmp_path / "mynet.py").unlink()
    failed = run("tree", str(tmp_path / "best.pt"), "--trust")
    assert failed.rc == 2
    assert "No module named 'mynet'" in failed.stderr
