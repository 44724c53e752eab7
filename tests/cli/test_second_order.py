"""Own losses, penalty, step and gradient check on the command line; worked examples, exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Run

pytestmark = pytest.mark.slow

X = torch.tensor([0.5681, 0.4868, 0.9277])


def test_a_step_down_the_mean_of_roots(run: Run, repo: Path, tmp_path: Path) -> None:
    output = tmp_path / "step.safetensors"
    words = ("--loss", "sum", "--optimizer", "sgd", "--lr", "1e-3", "-o", output)
    done = run("step", f"{repo}/sample_models/roots.py:MeanOfRoots", *words)
    assert done.rc == 0, done.stderr
    made = load_file(output)
    assert [round(g, 4) for g in made["./x.grad"].tolist()] == [0.0882, 0.0893, 0.0841]
    assert [round(v, 4) for v in (X + made["./x.update"]).tolist()] == [0.5680, 0.4867, 0.9276]
    assert done.stdout.splitlines()[1].startswith("Optimizer SGD: lr=0.001, dampening=0")
    x = X.clone().requires_grad_()
    (x + 3).sqrt().mean().backward()
    assert torch.equal(made["./x.grad"], x.grad)
    assert torch.equal(made["./x.update"], (X - 1e-3 * x.grad) - X)


def test_the_penalty_of_two_steps(run: Run, repo: Path) -> None:
    word = f"{repo}/sample_models/two_steps.py:TwoSteps"
    done = run("grads", word, "--penalty", "gp")
    assert done.rc == 0, done.stderr
    assert "Penalty gp = 9.00000;" in done.stdout and "norms 4.000" in done.stdout
    document = json.loads(run("grads", word, "--penalty", "gp", "--json", "-q").stdout)
    assert (document["penalty"]["value"], document["penalty"]["norms"]) == (9, [4])


def test_own_losses_by_file_and_function(run: Run, repo: Path) -> None:
    samples = repo / "sample_models"
    words = ("grads", f"{samples}/digits.py:trained", "--layer", "fc", "--target", "5")
    done = run(*words, "--loss", f"{samples}/margin.py:margin")
    assert done.rc == 0, done.stderr
    assert "margin.py, line 14; target 5" in done.stdout


def test_gradcheck_ends_with_0_or_1_and_says_where(run: Run, repo: Path) -> None:
    word = f"{repo}/sample_models/wrong_backward.py:ScaleFunction"
    right = run("gradcheck", word, "--shape", "1x3", "--shape", "3")
    assert (right.rc, "agrees" in right.stdout) == (0, True)
    shapes = ("--shape", "2x3", "--shape", "3")
    wrong = run("gradcheck", word, *shapes)
    assert wrong.rc == 1
    assert "6 of 18 differ" in wrong.stdout
    assert "6 of 54 derivatives" in wrong.stdout
    data = json.loads(run("gradcheck", word, "--json", "-q", *shapes).stdout)
    assert (data["command"], data["ok"], data["eps"]) == ("gradcheck", False, 1e-6)
    assert data["comparisons"][1]["farthest"][0]["input_index"] == [2]
