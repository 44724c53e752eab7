"""The batch of a model: noise, an example, images in the layout of its task, or tensors."""

from __future__ import annotations

import hashlib
import io
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import hookscope
from hookscope import load_model as load
from hookscope.errors import InputError
from hookscope.inputs.batch import build_batch
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.model_loader import wrap
from hookscope.specs.request import InputRequest
from tests.refusals import refused

PLAIN, GREY = wrap(nn.Conv2d(3, 4, 3)), wrap(nn.Conv2d(1, 2, 3))


def model_file(folder: Path, code: str) -> LoadedModel:
    path = folder / "net.py"
    path.write_text("import torch\nfrom torch import nn\n" + code)
    return load(f"{path}:Net")


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    source = np.random.default_rng(0)
    files = [str(tmp_path / f"photo{i}.png") for i in range(3)]
    for file in files:
        Image.fromarray(source.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(file)
    return files


@pytest.fixture
def small(tmp_path: Path) -> str:
    Image.new("RGB", (10, 20)).save(tmp_path / "small.png")
    return str(tmp_path / "small.png")


def test_noise_follows_the_seed_and_leaves_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    batch = build_batch(PLAIN, shape=(2, 3, 8, 8), seed=5)
    assert torch.equal(batch.value, build_batch(PLAIN, shape=(2, 3, 8, 8), seed=5).value)
    assert not torch.equal(batch.value, build_batch(PLAIN, shape=(2, 3, 8, 8), seed=6).value)
    assert torch.equal(torch.get_rng_state(), state)
    expected = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    assert torch.equal(batch.value, expected)
    assert "2x3x8x8" in batch.note and "seed 5" in batch.note


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("resnet18", ["1x3x224x224"]),
        ("inception_v3", ["1x3x299x299"]),
        ("fcn_resnet50", ["1x3x520x520"]),
        ("ssd300_vgg16", ["3x320x320"]),
        ("raft_small", ["1x3x128x128", "1x3x128x128"]),
        ("r3d_18", ["1x3x16x112x112"]),
        ("vit_h_14", ["1x3x518x518"]),
    ],
)
def test_noise_is_shaped_for_the_task(name: str, shapes: list[str]) -> None:
    batch = build_batch(load(name, meta=True))
    assert [source["shape"] for source in batch.sources] == shapes


def test_noise_keeps_to_the_values_a_task_takes() -> None:
    first, second = build_batch(load("raft_small", meta=True)).value
    assert -1 <= first.min() < -0.9
    assert 0.9 < first.max() <= 1
    assert not torch.equal(first, second)
    detector = load("ssd300_vgg16", meta=True)
    (image,) = build_batch(detector).value
    assert 0 <= image.min() < 0.1
    assert 0.9 < image.max() <= 1
    two = build_batch(detector, shape=(2, 3, 32, 32))
    assert [tuple(image.shape) for image in two.value] == [(3, 32, 32)] * 2
    assert "0 to 1" in two.note
    with pytest.raises(InputError, match="5 dimensions"):
        build_batch(detector, shape=(1, 2, 3, 4, 5))


def test_several_images_make_a_batch(photos: list[str]) -> None:
    model = load("resnet18", meta=True)
    batch = build_batch(model, photos)
    assert batch.value.shape == (3, 3, 224, 224)
    assert torch.equal(batch.value[1], model.preprocess(Image.open(photos[1])))
    assert [source["spec"] for source in batch.sources] == photos
    ends = {name: batch.sources[1].pop(name) for name in ("black", "white")}
    assert batch.sources[1] == {
        "spec": photos[1],
        "sha256": hashlib.sha256(Path(photos[1]).read_bytes()).hexdigest(),
        "shape": "3x224x224",
        "dtype": "float32",
    }
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    assert ends["black"] == pytest.approx(-mean / std, abs=1e-5)
    assert ends["white"] == pytest.approx((1 - mean) / std, abs=1e-5)


@pytest.mark.parametrize("wrap_word", [str, Path])
def test_one_image_may_be_a_word_or_a_path(photos: list[str], wrap_word: type) -> None:
    found = build_batch(PLAIN, wrap_word(photos[0])).value
    assert torch.equal(found, build_batch(PLAIN, [photos[0]]).value)
    assert found.shape == (1, 3, 60, 80)


def test_detectors_get_a_list_of_images_of_any_size(photos: list[str], small: str) -> None:
    value = build_batch(load("ssd300_vgg16", meta=True), [photos[0], small]).value
    assert [tuple(image.shape) for image in value] == [(3, 60, 80), (3, 20, 10)]


def test_flow_takes_images_in_pairs_and_video_the_frames_of_a_clip(photos, caplog) -> None:
    flow, video = load("raft_small", meta=True), load("r3d_18", meta=True)
    frames = build_batch(flow, photos[:2]).value
    for frame, photo in zip(frames, photos[:2], strict=True):
        assert torch.equal(frame, flow.preprocess(Image.open(photo))[None])
    moving = build_batch(video, photos[:2] * 16).value
    assert moving.shape == (2, 3, 16, 112, 112)
    assert torch.equal(moving[1, :, 3], video.preprocess(Image.open(photos[1])))
    for model in (flow, video):
        with pytest.raises(InputError, match="3 "):
            build_batch(model, photos)
    assert not caplog.records
    with caplog.at_level(logging.INFO, "hookscope"):  # one image is repeated, which is told
        assert torch.equal(*build_batch(flow, photos[0]).value)
        still = build_batch(video, photos[0]).value
    assert still.shape == (1, 3, 16, 112, 112)
    assert torch.equal(still[:, :, 0], still[:, :, 15])
    assert "both frames" in caplog.text and "16 frames" in caplog.text


def test_images_that_do_not_stack_are_refused_unless_sized(photos: list[str], small: str) -> None:
    with refused(InputError, "3x60x80, 3x20x10", hint="--size"):
        build_batch(PLAIN, [photos[0], small])
    assert build_batch(PLAIN, [photos[0], small], size=32).value.shape == (2, 3, 32, 32)


def test_the_choice_of_recipe_is_heeded_and_told(photos: list[str]) -> None:
    model = load("resnet50", meta=True)
    own = build_batch(model, photos[0])
    assert "ResNet50_Weights.IMAGENET1K_V2" in own.note and "232" in own.note
    imagenet = build_batch(model, photos[0], preprocess="imagenet")
    assert "imagenet" in imagenet.note and "256" in imagenet.note
    assert not torch.equal(own.value, imagenet.value)
    plain = build_batch(model, photos[0], preprocess="none", size=(30, 40))
    assert plain.value.shape == (1, 3, 30, 40)
    assert 0 <= plain.value.min() < plain.value.max() <= 1
    shifted = build_batch(model, photos[0], preprocess="none", mean=[1.0, 1, 1], std=[1.0])
    assert shifted.value.max() <= 0


@pytest.mark.parametrize(
    ("choices", "subject"),
    [
        ({"preprocess": "clip"}, "'clip'"),
        ({"size": 0}, "size 0"),
        ({"mean": (0.5, 0.5)}, "--mean has 2"),
        ({"std": (1.0, 0.0, 1.0)}, "0"),
        ({"shape": (1, 3, 8, 8), "size": 8}, "not both"),
        ({"shape": (2, 3, 8, 8)}, "1x3x8x8"),
    ],
)
def test_a_wrong_choice_is_refused(photos: list[str], choices: dict, subject: str) -> None:
    with refused(InputError, message=subject):
        build_batch(PLAIN, photos[0], **choices)


def test_choices_for_images_are_refused_where_there_is_none() -> None:
    for choices, subject in (
        ({"size": 8, "mean": (1.0,)}, "--size and --mean"),
        ({"mean": (1.0,)}, "--mean"),
    ):
        with pytest.raises(InputError, match=subject):
            InputRequest(shape=(1, 3, 8, 8), **choices)
    net, x = wrap(nn.Linear(4, 2)), torch.ones(1, 4)
    assert build_batch(net, x, preprocess="none").value is x
    assert build_batch(net, "ones:1x4", preprocess="none").value.equal(x)
    with pytest.raises(InputError, match="--preprocess"):
        build_batch(net, x, preprocess="imagenet")
    with refused(InputError, hint="--shape"):  # nothing is known of its input
        build_batch(PLAIN)


def test_a_model_of_one_channel_gets_a_grey_image(photos: list[str], tmp_path: Path) -> None:
    grey = build_batch(wrap(nn.Sequential(nn.Conv2d(1, 2, 3))), photos[0])
    assert grey.value.shape == (1, 1, 60, 80) and "grey" in grey.note
    luminance = np.asarray(Image.open(photos[0]).convert("L")) / np.float32(255)
    assert np.allclose(grey.value[0, 0], luminance)
    by_example = model_file(
        tmp_path,
        "class Net(nn.Linear):\n    def __init__(self): super().__init__(8, 2)\n"
        "def example_input(): return (torch.zeros(1, 1, 8, 6),)\n",
    )
    assert build_batch(by_example, photos[0]).value.shape == (1, 1, 8, 6)
    by_shape = build_batch(wrap(nn.Linear(8, 2)), photos[0], shape=(1, 1, 5, 8))
    assert by_shape.value.shape == (1, 1, 5, 8)
    with refused(InputError, "imagenet", hint="--preprocess"):  # which is for colours
        build_batch(GREY, photos[0], preprocess="imagenet")
    with pytest.raises(InputError, match=r"--mean has 2 .* 1 channel"):
        build_batch(GREY, photos[0], mean=(0.5, 0.5))
    with pytest.raises(InputError, match="12 channels"):
        build_batch(wrap(nn.Conv2d(12, 2, 3)), photos[0])


def test_a_file_may_offer_its_own_preprocessing(photos: list[str], tmp_path: Path) -> None:
    model = model_file(
        tmp_path,
        "class Net(nn.Identity): pass\ncalls = []\n"
        "def preprocess(image):\n    calls.append(image.size)\n"
        "    return torch.full((2, 3, 4), float(image.width + len(calls)))\n",
    )
    batch = build_batch(model, photos[:2])
    assert batch.value.shape == (2, 2, 3, 4)
    assert batch.value.amax((1, 2, 3)).tolist() == [81, 82]  # run once for each image
    assert "preprocess()" in batch.note and "black" not in batch.sources[0]
    with pytest.raises(InputError, match="changed"):
        build_batch(model, photos[0], size=8)


def test_a_file_may_offer_its_own_example(tmp_path: Path) -> None:
    model = model_file(
        tmp_path,
        "class Net(nn.Embedding):\n    def __init__(self): super().__init__(9, 2)\n"
        "def example_input(): return torch.randint(9, (1, 4))\n",
    )
    state = torch.get_rng_state()
    batch = build_batch(model, seed=3)
    assert batch.value.dtype is torch.int64
    assert torch.equal(batch.value, build_batch(model, seed=3).value)
    assert torch.equal(torch.get_rng_state(), state)
    assert batch.sources[0]["spec"] == "example_input"
    assert build_batch(model, shape=(1, 5)).value.shape == (1, 5)


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(1, 3),
        (torch.ones(1), torch.zeros(2)),
        {"ids": torch.tensor([1])},
        ((torch.ones(1),), {"mask": torch.zeros(1, dtype=torch.bool)}),
        [torch.ones(3, 4, 4)],
    ],
)
def test_tensors_from_python_pass_through(value: object) -> None:
    batch = build_batch(PLAIN, value)
    assert batch.value is value
    assert all(source["spec"] == "tensor" for source in batch.sources)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_the_hash_of_a_tensor_tells_its_values(dtype: torch.dtype) -> None:
    def digest(tensor: Tensor) -> str:
        return build_batch(PLAIN, tensor).sources[0]["sha256"]

    ones = torch.ones(3, 4, dtype=dtype)
    assert digest(ones) == digest(ones.clone().T.contiguous().T)
    assert digest(ones) != digest(torch.zeros(3, 4, dtype=dtype))


def test_an_image_comes_from_standard_input(photos: list[str], monkeypatch) -> None:
    data = Path(photos[0]).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    batch = build_batch(PLAIN, "-")
    assert torch.equal(batch.value, build_batch(PLAIN, photos[0]).value)
    assert batch.sources[0]["spec"] == "-"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with refused(InputError, "empty", hint="--input"):
        build_batch(PLAIN, "-")


def test_an_image_too_small_for_the_model_is_mentioned(photos: list[str], caplog) -> None:
    with caplog.at_level(logging.WARNING, "hookscope"):
        build_batch(load("alexnet", meta=True), photos[0], size=32)
    assert "63x63" in caplog.text and "3x32x32" in caplog.text


def test_images_are_brought_to_the_shape_that_was_given(photos: list[str]) -> None:
    assert build_batch(PLAIN, photos[:2], shape=(2, 3, 8, 8)).value.shape == (2, 3, 8, 8)
    assert build_batch(PLAIN, photos[0], shape=(8, 8)).value.shape == (1, 3, 8, 8)
    video, detector = load("r3d_18", meta=True), load("ssdlite320_mobilenet_v3_large", meta=True)
    with pytest.raises(InputError, match=r"1x3x16x32x32.* 1x3x8x32x32"):
        build_batch(video, photos[0], shape=(1, 3, 8, 32, 32))
    with pytest.raises(InputError, match="2x3x64x64"):
        build_batch(detector, photos[:2], shape=(3, 3, 64, 64))
    assert len(build_batch(detector, photos[:2], shape=(3, 64, 64)).value) == 2


@pytest.mark.parametrize("shape", [(999_999, 1, 9999, 9999), (10**9,) * 4, (10**20, 1, 8, 8)])
def test_noise_that_does_not_fit_into_memory_is_an_error_of_the_input(
    shape: tuple[int, ...],
) -> None:
    model = nn.Conv2d(1, 1, 3)
    calls: list[Callable[[], object]] = [
        lambda: hookscope.capture(model, shape=shape),
        lambda: hookscope.tree(model, shapes=True, shape=shape),
        lambda: hookscope.capture(model, input="random:" + "x".join(map(str, shape))),
    ]
    for call in calls:
        with pytest.raises(InputError, match="memory"):
            call()
