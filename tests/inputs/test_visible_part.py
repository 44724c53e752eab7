"""The part of an image that preprocessing leaves, for preprocessing of known geometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from hookscope.inputs.visible_part import find_visible_part

Run = Callable[[Image.Image], Tensor]
WHOLE = {"of": "sides", "width": 1.0, "height": 1.0}


def tensor(image: Any) -> Tensor:
    return F.to_dtype(F.pil_to_tensor(image), torch.float32, scale=True)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("resized", "cropped"), [(256, 224), (300, 150), (128, 128), (40, 32)])
def test_a_crop_after_resizing_the_shorter_side(channels: int, resized: int, cropped: int) -> None:
    def run(image: Image.Image) -> Tensor:
        middle = F.center_crop(F.resize(image, [resized]), [cropped])
        return F.normalize(tensor(middle), [0.4] * channels, [0.2] * channels)

    found = find_visible_part(run, channels)
    assert found is not None and found["of"] == "shorter side"
    assert found["width"] == found["height"] == pytest.approx(cropped / resized, abs=0.005)


@pytest.mark.parametrize("size", [[8, 8], [100, 200]])
def test_resizing_to_a_fixed_size_leaves_all(size: list[int]) -> None:
    assert find_visible_part(lambda image: tensor(F.resize(image, size)), 3) == WHOLE


def test_a_crop_of_a_fixed_size_is_a_share_of_each_side() -> None:
    def run(image: Image.Image) -> Tensor:
        return tensor(F.center_crop(F.resize(image, [200, 200]), [100, 150]))

    found = find_visible_part(run, 3)
    assert found is not None and found["of"] == "sides"
    assert (found["width"], found["height"]) == pytest.approx((0.75, 0.5), abs=0.005)


UNKNOWN: dict[str, Run] = {
    "mirrored": lambda image: tensor(F.horizontal_flip(image)),
    "turned": lambda image: tensor(F.rotate(image, 90)),
    "in a corner": lambda image: tensor(F.crop(image, 0, 0, 128, 128)),
    "random": lambda image: tensor(v2.RandomResizedCrop(64)(image)),
    "padded": lambda image: F.pad(tensor(image), [50]),
    "constant": lambda image: torch.ones(3, 8, 8),
    "failing": lambda image: tensor(F.crop(image, 0, 0, 128, 128))[9],
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_geometry_is_not_known(name: str) -> None:
    assert find_visible_part(UNKNOWN[name], 3) is None


def test_preprocessing_of_torchvision_is_as_its_sizes_say() -> None:
    transforms = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
    found = find_visible_part(transforms, 3)
    share = transforms.crop_size[0] / transforms.resize_size[0]
    assert found == {"of": "shorter side", "width": share, "height": share}
