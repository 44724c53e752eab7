"""A map leaves the model and the image as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from tests.model_analysis.cams.models import WITHOUT_ATTENTION, Overwritten, images, seeded
from tests.oracle.by_hand import same_bits


@pytest.mark.parametrize("method", WITHOUT_ATTENTION)
def test_frozen_parameters_stay_frozen_and_the_others_trainable(method: str) -> None:
    model = seeded(Overwritten())
    model.register_buffer("learned", torch.zeros(2, dtype=torch.float64, requires_grad=True))
    model.register_buffer("counted", torch.zeros(2, dtype=torch.float64))
    model.conv.weight.requires_grad_(False)
    model.fc.bias.requires_grad_(False)
    before = {n: t.requires_grad for n, t in [*model.named_parameters(), *model.named_buffers()]}
    assert set(before.values()) == {True, False}
    choices: dict[str, Any] = {"steps": 3} if method == "integrated" else {}
    hookscope.cam(model, by=method, input=images(1, 3, 8, 8), target=1, **choices)
    after = {n: t.requires_grad for n, t in [*model.named_parameters(), *model.named_buffers()]}
    assert after == before
    assert all(parameter.grad is None for parameter in model.parameters())


class DoublesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rest = Overwritten()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(x.mul_(2))


@pytest.mark.parametrize("method", WITHOUT_ATTENTION)
def test_the_image_is_left_alone_by_a_model_that_changes_its_input(method: str) -> None:
    x = images(1, 3, 8, 8)
    kept = x.clone()
    choices: dict[str, Any] = {"steps": 3} if method == "integrated" else {}
    hookscope.cam(seeded(DoublesItsInput()), by=method, input=x, target=1, **choices)
    assert same_bits(x, kept)
    assert not x.requires_grad and x.grad is None
