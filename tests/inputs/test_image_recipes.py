"""Image recipes are bit-identical to the transforms of torchvision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision.models import get_model_weights
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from hookscope.errors import InputError
from hookscope.inputs.image_recipes import named_recipe
from hookscope.sources.torchvision import preset_recipe


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    source = np.random.default_rng(width * 1000 + height)
    return Image.fromarray(source.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(
        mode
    )


@settings(max_examples=30)
@given(st.integers(1, 700), st.integers(1, 700))
def test_imagenet_is_torchvisions_recipe_to_the_bit(width: int, height: int) -> None:
    image = picture(width, height)
    assert torch.equal(
        named_recipe("imagenet").run(image), ImageClassification(crop_size=224)(image)
    )


@pytest.mark.parametrize("size", [64, 300, (128, 96)])
def test_another_size_keeps_the_margin_of_imagenet(size: int | tuple[int, int]) -> None:
    image = picture(500, 333)
    height, width = (size, size) if isinstance(size, int) else size
    expected = F.normalize(
        F.to_tensor(F.center_crop(F.resize(image, round(max(height, width) * 256 / 224)), size)),
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
    )
    assert torch.equal(named_recipe("imagenet", size).run(image), expected)


MEAN, STD = (0.1, 0.2, 0.3), (0.5, 2.0, 1.0)
# What is asked of the recipe "none", and what torchvision makes of an image from 0 to 1.
PLAIN: list[tuple[tuple, Callable[[Image.Image], Tensor]]] = [
    ((), F.to_tensor),
    (((40, 50),), lambda x: F.to_tensor(F.resize(x, [40, 50], F.InterpolationMode.BILINEAR))),
    ((None, MEAN, STD), lambda x: F.normalize(F.to_tensor(x), MEAN, STD)),
    ((None, (0.5,), None), lambda x: F.to_tensor(x) - 0.5),
]


@pytest.mark.parametrize(("asked", "made"), PLAIN)
def test_none_resizes_and_normalizes_only_as_it_is_asked_to(asked: tuple, made: Callable) -> None:
    image = picture(310, 170)
    assert torch.equal(named_recipe("none", *asked).run(image), made(image))


def test_a_grey_image_has_one_channel_which_three_means_do_not_fit() -> None:
    grey = picture(31, 17, "L")
    assert torch.equal(named_recipe("none").run(grey), F.to_tensor(grey))
    assert named_recipe("none", 40).run(grey).shape == (1, 40, 40)
    with pytest.raises(InputError, match="3 values"):
        named_recipe("imagenet").run(grey)
    with pytest.raises(InputError, match="imagenet or none"):
        named_recipe("clip")


@pytest.mark.parametrize(
    "name",
    ["resnet50", "inception_v3", "vit_h_14", "swin_v2_t", "fcn_resnet50", "quantized_resnet18"],
)
def test_weights_bring_their_own_recipe(name: str) -> None:
    entry = get_model_weights(name).DEFAULT
    image = picture(640, 480)
    assert torch.equal(preset_recipe(entry).run(image), entry.transforms()(image))


def test_frames_of_a_clip_are_prepared_as_torchvision_prepares_the_clip() -> None:
    entry = get_model_weights("r3d_18").DEFAULT
    frames = [picture(320, 240), picture(320, 240).transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    clip = entry.transforms()(torch.stack([F.pil_to_tensor(frame) for frame in frames]))
    run = preset_recipe(entry).run
    assert torch.equal(torch.stack([run(frame) for frame in frames], 1), clip)


def test_detectors_see_the_whole_image() -> None:
    entry = get_model_weights("ssd300_vgg16").DEFAULT
    image = picture(50, 40)
    assert torch.equal(preset_recipe(entry).run(image), F.to_tensor(image))
    assert preset_recipe(entry, (30, 20)).run(image).shape == (3, 30, 20)
    with pytest.raises(InputError, match="takes no --mean"):
        preset_recipe(entry, mean=(0.5,))


def test_flow_frames_get_a_size_that_the_model_can_halve() -> None:
    entry = get_model_weights("raft_small").DEFAULT
    run = preset_recipe(entry).run
    kept = picture(256, 160)
    assert torch.equal(run(kept), entry.transforms()(kept, kept)[0])
    assert run(picture(203, 99)).shape == (3, 128, 200)
    assert preset_recipe(entry, (136, 144)).run(kept).shape == (3, 136, 144)
    with pytest.raises(InputError, match="multiples of 8"):
        preset_recipe(entry, 130)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("resnet50", 64), ("resnet50", (64, 96)), ("fcn_resnet50", (64, 96)), ("r3d_18", 64)),
        ("mvit_v1_b", (64, 96)),
    ],
)
@pytest.mark.parametrize("image", [(640, 480), (480, 640)])
def test_a_recipe_can_be_brought_to_another_size(name: str, size, image: tuple[int, int]) -> None:
    plain = preset_recipe(get_model_weights(name).DEFAULT)
    assert plain.tuned is not None
    shape = (3, *(size if isinstance(size, tuple) else (size, size)))
    assert plain.tuned(size, None, None).run(picture(*image)).shape == shape


def test_another_size_keeps_the_margin_of_the_crop() -> None:
    entry = get_model_weights("resnet50").DEFAULT  # 232 before a crop of 224
    image = picture(640, 480)
    expected = ImageClassification(crop_size=64, resize_size=66)(image)
    assert torch.equal(preset_recipe(entry, 64).run(image), expected)


def test_a_recipe_takes_another_mean_and_std() -> None:
    entry = get_model_weights("resnet50").DEFAULT
    image = picture(300, 300)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.2, 0.1)
    size = [v2.Resize(232), v2.CenterCrop(224), v2.PILToTensor()]
    values = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    expected = v2.Compose([*size, *values])(image)
    recipe = preset_recipe(entry, None, mean, std)
    assert torch.allclose(recipe.run(image), expected, atol=1e-6)
    assert "mean 0.5 0.4 0.3, std 0.2 0.2 0.1" in recipe.text


def test_the_text_says_what_is_done() -> None:
    text = preset_recipe(get_model_weights("resnet18").DEFAULT).text
    for part in ("ResNet18_Weights.IMAGENET1K_V1", "to 256", "224x224"):
        assert part in text
    assert "32x32" in named_recipe("none", 32).text
    assert "own size" in named_recipe("none").text
