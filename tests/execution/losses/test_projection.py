"""The loss that any output has: the output along a random direction."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import LossError
from hookscope.execution.loss import projection_loss


def direction(count: int, seed: int) -> torch.Tensor:
    x = torch.zeros(count, requires_grad=True)
    return torch.autograd.grad(projection_loss(x, seed).value, x)[0]


def test_the_seed_chooses_the_direction_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    first = direction(8, 3)
    torch.manual_seed(2)
    assert torch.equal(direction(8, 3), first)
    assert not torch.allclose(direction(8, 4), first)


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    direction(8, 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_direction_is_normal_noise_of_unit_length_on_average() -> None:
    drawn = direction(10_000, 0)
    assert float(drawn.norm()) == pytest.approx(1, abs=0.03)
    assert float(drawn.mean()) == pytest.approx(0, abs=5e-4)


def test_the_value_is_the_sum_of_the_entries_along_the_direction() -> None:
    parts = {"a": torch.randn(2, 3), "b": torch.randn(4).double(), "c": torch.arange(3)}
    entries = torch.cat([parts["a"].flatten().double(), parts["b"]])
    expected = (entries * direction(10, 5).double()).sum()
    torch.testing.assert_close(
        projection_loss(parts, 5).value.double(), expected, rtol=1e-5, atol=1e-6
    )


def test_it_has_a_name_and_neither_target_nor_reduction() -> None:
    found = projection_loss(torch.ones(2), 0)
    assert (found.name, found.target, found.reduction) == ("projection", "", "")
    assert "variance 1/n" in found.formula


def test_an_empty_output_is_refused() -> None:
    with pytest.raises(LossError, match="empty"):
        projection_loss(torch.zeros(0, 3), 0)


def test_check_takes_another_direction_with_another_seed() -> None:
    def findings(seed: int) -> list[object]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).eval()
        # Over this ceiling every gradient is listed, with its largest entry.
        health = hookscope.check(
            net, only="exploding", input=torch.ones(2, 3), seed=seed, ceiling=1e-9
        )
        assert health.findings
        return [(finding.layer, finding.measured) for finding in health.findings]

    assert findings(0) == findings(0)
    assert findings(0) != findings(1)
