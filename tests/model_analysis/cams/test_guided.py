"""Guided backpropagation says what it guides, and never passes off the plain gradient for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from tests.model_analysis.cams.models import (
    about,
    functions,
    images,
    seeded,
)
from tests.zoo import Module

X = images(1, 3, 8, 8)


def test_a_model_without_relus_has_nothing_to_guide() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.GELU(), nn.Flatten())
    with pytest.raises(RequestError, match=r"ReLU.* gelu 1"):
        hookscope.cam(model, input=X.float(), by="guided")


def branches(self: Module, x: Tensor) -> Tensor:
    """A ReLU of a parameter, beside the way from the image to the score, and a GELU on it."""
    return self.fc(F.gelu(self.a(x)).mean((2, 3))) + self.fc.bias.relu()


def with_forward(function: Any) -> Module:
    model = seeded(functions())
    model.function = function
    return model


def test_relus_off_the_way_from_the_image_are_not_taken_for_guidance() -> None:
    with pytest.raises(RequestError, match=r"ReLU .*1 elsewhere.*gelu 1") as caught:
        hookscope.cam(with_forward(branches), input=X, by="guided")
    assert "saliency" in caught.value.hint


def test_guided_tells_what_it_guides_and_what_it_leaves() -> None:
    mixed = with_forward(lambda self, x: branches(self, F.silu(F.relu(x - 0.5))))
    found = about(hookscope.cam(mixed, input=X, by="guided", target=1))
    assert (found["relus"], found["unguided"]) == (1, {"gelu": 1, "silu": 1})
    all_of_them = about(hookscope.cam(seeded(functions()), input=X, by="guided", target=1))
    assert (all_of_them["relus"], all_of_them["unguided"]) == (4, {})
