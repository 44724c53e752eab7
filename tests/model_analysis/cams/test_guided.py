"""Guided backpropagation says what it guides, and never passes off the plain gradient for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from tests.model_analysis.cams.models import Functions, images, seeded

X = images(1, 3, 8, 8)


def cam_metadata(shot: hookscope.Capture) -> dict[str, Any]:
    return shot.metadata["cam"]


def test_a_model_without_relus_has_nothing_to_guide() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.GELU(), nn.Flatten())
    with pytest.raises(RequestError, match=r"No ReLU ran .* only other activations: gelu 1"):
        hookscope.cam(model, input=X.float(), by="guided")


class Branches(Functions):
    """A ReLU of a parameter, beside the way from the image to the score, and a GELU on it."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.gelu(self.a(x)).mean((2, 3))) + self.bias.relu()


def test_relus_off_the_way_from_the_image_are_not_taken_for_guidance() -> None:
    with pytest.raises(RequestError, match=r"No ReLU is between .*1 elsewhere.*gelu 1") as caught:
        hookscope.cam(seeded(Branches()), input=X, by="guided")
    assert "saliency" in caught.value.hint


def test_guided_tells_what_it_guides_and_what_it_leaves() -> None:
    class Mixed(Branches):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.silu(F.relu(x - 0.5)))

    found = cam_metadata(hookscope.cam(seeded(Mixed()), input=X, by="guided", target=1))
    assert (found["relus"], found["unguided"]) == (1, {"gelu": 1, "silu": 1})
    all_of_them = cam_metadata(hookscope.cam(seeded(Functions()), input=X, by="guided", target=1))
    assert (all_of_them["relus"], all_of_them["unguided"]) == (4, {})
