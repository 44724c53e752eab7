"""Examples small enough to work by hand, with the exact numbers that must come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.hooks.test_values import Module

SAMPLES = Path("sample_models")


def close(tensor: Tensor, expected: Any) -> bool:
    return torch.allclose(tensor, torch.tensor(expected), atol=5e-5)


def test_a_convolution_without_padding_shrinks_8_by_8_to_6_by_6(repo: Path) -> None:
    word = f"{repo / SAMPLES}/conv_then_linear.py:ConvThenLinear"
    shot = hookscope.capture(word, types=["Conv2d"])
    assert [r.shape for r in shot.records] == [(1, 16, 6, 6)]


def test_two_functions_forward(repo: Path) -> None:
    word = f"{repo / SAMPLES}/two_steps.py:TwoSteps"
    shot = hookscope.capture(word, layers=["f?"], what=["input", "output"])
    assert {key: shot[key].tolist() for key in shot} == {
        "f1/input.0": [1, 2, 3, 4],
        "f1/output": [82],
        "f2/input.0": [82],
        "f2/output": [20.5],
    }


def test_two_functions_backward(repo: Path) -> None:
    word = f"{repo / SAMPLES}/two_steps.py:TwoSteps"
    found = hookscope.grads(
        word, loss="sum", layers=["f1", "f2"], what=["input", "output", "param"]
    )
    assert {key: found[key].tolist() for key in found} == {
        "f2/output.grad": [1],
        "f2/input.0.grad": [0.25],
        "f1/output.grad": [0.25],
        "f1/weight.grad": [[0.25, 0.5, 0.75, 1]],
        "f1/bias.grad": [0.25],
        "f1/input.0.grad": [2, 2, 2, 2],
        "./input.0.grad": [2, 2, 2, 2],
    }
    order = [r.module for r in found.records if r.kind == "output.grad"]
    assert order == ["f2", "f1"]


def test_the_deprecated_hook_shows_only_the_last_step_and_ours_the_whole(repo: Path) -> None:
    net = hookscope.load_model(f"{repo / SAMPLES}/two_steps.py:TwoSteps").module
    seen: list[Any] = []
    handle = net.register_backward_hook(lambda m, given, got: seen.append(given))  # hook-by-hand
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    with pytest.warns(FutureWarning, match="full backward hook"):
        net(x).sum().backward()
    handle.remove()
    assert seen[0][0].tolist() == [0.25]
    found = hookscope.grads(net, input=x.detach(), loss="sum", layers=["."], what=["input"])
    assert found["./input.0.grad"].tolist() == [2, 2, 2, 2]


def test_the_mean_of_square_roots() -> None:
    net = Module(
        lambda self, x: self.mean(self.plus(x)),
        plus=Module(lambda self, x: x + 3),
        mean=Module(lambda self, y: y.sqrt().mean().reshape(1)),
    )
    x = torch.tensor([0.5681, 0.4868, 0.9277])
    found = hookscope.grads(net, input=x, loss="sum", what=["output", "input"])
    assert close(found["plus/output.grad"], [0.0882, 0.0893, 0.0841])
    assert close(x - 1e-3 * found["./input.0.grad"], [0.5680, 0.4867, 0.9276])


def test_a_doubling_function_passes_back_twice_the_gradient(repo: Path) -> None:
    word = f"{repo / SAMPLES}/doubling.py:SquareOfDouble"
    found = hookscope.grads(word, loss="sum", what=["output", "input"])
    assert found["./input.0.grad"].tolist() == [16]
    assert found["twice/output.grad"].tolist() == [8]


@pytest.mark.parametrize("seed", [0, 1])
def test_divergence_straight_on_logits_says_nothing_about_the_model(seed: int) -> None:
    logits = torch.randn(1, 10, generator=torch.Generator().manual_seed(seed))
    found = hookscope.grads(
        nn.Identity(), input=logits, loss="kl", target=3, raw=True, reduction="mean"
    )
    expected = torch.zeros(1, 10)
    expected[0, 3] = -0.1
    assert torch.equal(found["./output.grad"], expected)


def test_divergence_from_the_softmax_is_cross_entropy() -> None:
    logits = torch.randn(1, 10, generator=torch.Generator().manual_seed(0))
    by_kl = hookscope.grads(nn.Identity(), input=logits, loss="kl", target=3)
    by_ce = hookscope.grads(nn.Identity(), input=logits, loss="ce", target=3)
    share = logits.softmax(1)
    share[0, 3] -= 1
    torch.testing.assert_close(by_kl["./output.grad"], share)
    torch.testing.assert_close(by_ce["./output.grad"], share)
