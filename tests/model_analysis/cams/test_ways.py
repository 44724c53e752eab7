"""Where gradients begin and stop on their way, and over which pixels a map comes to lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookscope
from hookscope.errors import RequestError
from tests.model_analysis.cams.models import about, functions, gradcam_by_hand, images, seeded
from tests.zoo import Module

X = images(1, 3, 8, 8)


def stem(start: Callable[[Module, Tensor], Tensor]) -> Module:
    """A model with a layer ``late``, which something precedes."""
    return seeded(
        Module(
            lambda self, x: self.fc(start(self, x).relu_().flatten(1)),
            conv=nn.Conv2d(3, 6, 3, stride=2, padding=1),
            act=nn.ReLU(inplace=True),
            late=nn.Conv2d(6, 6, 1),
            fc=nn.Linear(6 * 16, 4),
        )
    )


def without_gradient(self: Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = self.act(self.conv(x))
    return self.late(y)


def checkpointed(self: Module, x: Tensor) -> Tensor:
    """A segment that runs without a graph, and again for the backward pass."""
    return checkpoint(self.late, self.act(self.conv(x)), use_reentrant=True)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(("kind", "layer"), [(without_gradient, "late"), (checkpointed, "act")])
def test_a_gradient_that_begins_or_stops_on_the_way_is_enough(kind: Any, layer: str) -> None:
    model = stem(kind)
    start = model.act(model.conv(X)).detach()
    a = model.late(start) if layer == "late" else start.requires_grad_()
    rest = a if layer == "late" else model.late(a)
    wanted = gradcam_by_hand(model.fc(rest.relu().flatten(1))[0, 2], a)
    shot = hookscope.cam(model, input=X, target=2)
    assert shot.metadata["cam"]["layer"] == layer
    torch.testing.assert_close(shot[f"{layer}/cam"], wanted)


def test_a_value_that_is_overwritten_by_its_other_name_counts_as_it_was_returned() -> None:
    def renamed(self: Module, x: Tensor) -> Tensor:
        y = self.conv(x)
        twice = self.same(y) * 2
        y.zero_()
        return self.fc(twice.flatten(1))

    conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
    model = Module(renamed, conv=conv, same=nn.Identity(), fc=nn.Linear(6 * 16, 4))
    shot = hookscope.cam(seeded(model), input=X, layer="same", by="eigencam")
    assert float(shot["same/cam"].max()) > 0


def test_an_image_that_the_gradient_does_not_reach_is_told() -> None:
    with pytest.raises(RequestError, match="no gradient"):
        hookscope.cam(stem(without_gradient), input=X, by="saliency")


@pytest.mark.parametrize("method", ["hirescam", "saliency", "integrated"])
@pytest.mark.parametrize(
    ("choices", "box"),
    [
        # The shorter side to 256 and the middle 224x224: x / 2 - 80, y / 2 - 16.
        ({"preprocess": "imagenet", "mean": (0, 0, 0), "std": (1, 1, 1)}, (72, 84, 92, 104)),
        ({"size": (128, 96)}, (38, 50, 43, 60)),  # squeezed: x / 8, y / 4
    ],
)
def test_the_map_lies_over_the_pixels_that_the_model_saw(
    tmp_path: Path, method: str, choices: dict[str, Any], box: tuple[int, int, int, int]
) -> None:
    image = Image.new("RGB", (768, 512))
    image.paste((255, 255, 255), (304, 200, 344, 240))
    image.save(tmp_path / "spot.png")

    def bright(self: Module, x: Tensor) -> Tensor:
        """The brighter a pixel, the more it counts, whatever the others are."""
        y = (self.seen(x) ** 2).sum((1, 2, 3))
        return torch.stack([y, -y], 1)

    model = Module(bright, seen=nn.Identity())
    shot = hookscope.cam(model, input=tmp_path / "spot.png", by=method, target=0, **choices)
    left, top, right, bottom = box
    inside = torch.zeros(shot["./cam"].shape[1:], dtype=torch.bool)
    inside[top:bottom, left:right] = True
    assert torch.equal(shot["./image"][0, 0] > 127, inside)
    # Resizing blurs the edges: pixels outside get an eighth, and those in the corners 49 in 64.
    assert torch.equal(shot["./cam"][0] > 0.2 * shot["./cam"].max(), inside)


# Guided backpropagation says what it guides.


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
