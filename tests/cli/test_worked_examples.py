"""The worked examples of the articles that teach hooks, each by one command, numbers exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import Run

pytestmark = pytest.mark.slow

Command = Callable[..., dict[str, Tensor]]


@pytest.fixture
def command(run: Run, repo: Path, tmp_path: Path) -> Command:
    """Run a verb on a sample model and return what it wrote."""

    def go(verb: str, sample: str, *words: object) -> dict[str, Tensor]:
        output = tmp_path / "out.safetensors"
        done = run(verb, f"{repo}/sample_models/{sample}", *map(str, words), "-o", output)
        assert done.rc == 0, done.stderr
        return load_file(output)

    return go


def test_a_convolution_without_padding_takes_a_pixel_off_every_side(command: Command) -> None:
    made = command("capture", "conv_then_linear.py:ConvThenLinear", "--what", "input,output")
    assert made["conv/input.0"].shape == (1, 3, 8, 8)
    assert made["conv/output"].shape == (1, 16, 6, 6)
    assert made["./output"].shape == (1, 10)


def test_two_steps_forward(command: Command) -> None:
    made = command("capture", "two_steps.py:TwoSteps", "--what", "input,output")
    values = ("f1/input.0", "f1/output", "f2/input.0", "f2/output")
    assert [made[key].flatten().tolist() for key in values] == [[1, 2, 3, 4], [82], [82], [20.5]]


def test_two_steps_backward(command: Command) -> None:
    words = ("--loss", "sum", "--what", "output,input,param")
    made = command("grads", "two_steps.py:TwoSteps", *words)
    found = {key: value.flatten().tolist() for key, value in made.items()}
    assert (found["f2/output.grad"], found["f2/input.0.grad"]) == ([1], [0.25])
    # What the full backward hook shows, not the deprecated one with its (0.25, None).
    assert (found["f1/output.grad"], found["f1/input.0.grad"]) == ([0.25], [2, 2, 2, 2])
    assert found["./input.0.grad"] == [2, 2, 2, 2]
    assert (found["f1/weight.grad"], found["f1/bias.grad"]) == ([0.25, 0.5, 0.75, 1], [0.25])


def test_two_steps_come_back_in_reverse_order(run: Run, repo: Path) -> None:
    done = run("trace", f"{repo}/sample_models/two_steps.py:TwoSteps", "--loss", "sum", "--leaves")
    rows = [line.split()[:2] for line in done.stdout.splitlines() if "ward  " in line]
    assert rows == [["f1", "forward"], ["f2", "forward"], ["f2", "backward"], ["f1", "backward"]]


def test_the_square_of_the_double_has_a_gradient_of_16(command: Command) -> None:
    words = ("--loss", "sum", "--what", "output,input")
    made = command("grads", "doubling.py:SquareOfDouble", *words)
    assert made["./input.0.grad"].tolist() == [16]
    assert made["twice/output.grad"].tolist() == [8]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_raw_recipe_for_kl_says_nothing_about_the_model(
    command: Command, tmp_path: Path, seed: int
) -> None:
    np.save(tmp_path / "three.npy", np.eye(10, dtype=np.float32)[3][None])
    words = ("--loss", "kl", "--target", tmp_path / "three.npy", "--seed", seed, "--layer", "fc")
    raw = command("grads", "digits.py:trained", *words, "--raw", "--reduction", "mean")
    expected = torch.zeros(1, 10)
    expected[0, 3] = -0.1
    assert torch.equal(raw["fc/output.grad"], expected)
    meant = command("grads", "digits.py:trained", *words)["fc/output.grad"]
    entropy = command("grads", "digits.py:trained", "--loss", "ce", "--target", 3, "--layer", "fc")
    assert torch.allclose(meant, entropy["fc/output.grad"], rtol=1e-5, atol=1e-7)
    assert not torch.allclose(meant, expected)
