"""Input that does not fit the model is an error with a hint; input that fits is not."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hookscope
from hookscope import load_model as load
from hookscope.errors import ForwardError, InputError
from hookscope.inputs.batch import build_batch
from hookscope.inputs.input_checks import check_input
from tests.refusals import refused

Arrays = dict[str, np.ndarray]
RESNET = load("resnet18", meta=True)
SOME = ["resnet18", "vit_b_16", "r3d_18", "raft_small", "fcn_resnet50"]
SOME += ["ssdlite320_mobilenet_v3_large"]


@pytest.fixture
def saved(tmp_path: Path):
    def save(array: np.ndarray) -> str:
        np.save(tmp_path / "a.npy", array)
        return str(tmp_path / "a.npy")

    return save


NOISE = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("f4")


@pytest.mark.parametrize(
    ("array", "hint"),
    [
        (NOISE[0], "array[None]"),
        (NOISE[0].transpose(1, 2, 0), "array.transpose(2, 0, 1)[None]"),
        (NOISE.transpose(0, 2, 3, 1), "channels"),
        (NOISE[:, :1], "3 channels in dimension 1, got 1"),
        (NOISE[0, 0, 0], "4 dimensions, got 1"),
        (NOISE.astype("u1"), "astype('float32')"),
    ],
)
def test_a_shape_that_cannot_run_is_refused_with_the_repair(saved, array, hint: str) -> None:
    with refused(InputError, "resnet18", hint=hint):
        build_batch(RESNET, saved(array))


def test_bytes_as_floats_are_warned_of(saved, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookscope"):
        build_batch(RESNET, saved(np.abs(NOISE)))
        assert caplog.text == ""
        build_batch(RESNET, saved(np.clip(np.abs(NOISE) * 100, 0, 255)))
    assert "by 255" in caplog.text


def alarms(name: str, caplog: pytest.LogCaptureFixture) -> str:
    """What is said of a model's own noise, and of what its recipe makes of a photo."""
    model = load(name, meta=True)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hookscope"):
        check_input(model, model.example(0))
        check_input(model, build_batch(model, "img.png").value)
        build_batch(model, shape=model.shape)
    return caplog.text


@pytest.mark.parametrize("name", SOME)
def test_what_a_model_is_made_for_raises_no_alarm(name: str, caplog) -> None:
    assert alarms(name, caplog) == ""


@pytest.mark.exhaustive
def test_no_torchvision_model_raises_a_false_alarm(caplog) -> None:
    from torchvision.models import list_models

    assert {name: said for name in list_models() if (said := alarms(name, caplog))} == {}


@pytest.mark.parametrize(
    ("name", "shape", "meant"),
    [
        ("resnet18", (3, 64, 48), "1x3x64x48"),
        ("resnet18", (64, 48, 3), "1x3x64x48"),
        ("resnet18", (64, 48), "1x3x64x48"),
        ("resnet18", (2, 64, 48, 3), "2x3x64x48"),
        ("r3d_18", (3, 8, 64, 64), "1x3x8x64x64"),
        ("raft_small", (3, 128, 128), "1x3x128x128"),
    ],
)
def test_a_shape_without_a_batch_is_answered_with_the_shape_that_was_meant(
    name: str, shape: tuple[int, ...], meant: str
) -> None:
    with refused(InputError, f"{name} .*{shape[-1]}", hint=f"--shape {meant}?"):
        build_batch(load(name, meta=True), shape=shape)


def test_the_tree_with_shapes_checks_the_shape_too() -> None:
    with refused(InputError, hint='shape="1x3x64x64"'):
        hookscope.tree("resnet18", shapes=True, shape=(3, 64, 64))


def test_a_convolution_on_noise_without_a_batch_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.ReLU())
    with caplog.at_level(logging.WARNING, "hookscope"):
        shot = hookscope.capture(model, layers=["1"], shape=(3, 8, 8))
    assert shot["1/output"].shape == (4, 6, 6)
    assert "--shape 1x3x8x8?" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hookscope"):
        hookscope.capture(model, shape=(1, 3, 8, 8))
        hookscope.capture(nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3)), shape=(1, 8))
        hookscope.capture(nn.Sequential(nn.Linear(8, 3), nn.Conv1d(3, 3, 1)), shape=(3, 8))
        hookscope.capture(nn.Linear(4, 2), input="random:3x4")
        hookscope.capture(nn.Embedding(10, 4), input="ints:1x4:0-10")
        hookscope.capture("sample_models/digits.py:trained", input="random:1x1x8x8")
    assert caplog.text == ""
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("module", "word", "said"),
    [
        (nn.Embedding(10, 4), "random:1x4", "integers"),
        (nn.Embedding(10, 4), "ints:1x50:0-30", "10 rows"),
        (nn.Conv2d(3, 4, 3), "random:1x8x8x3", "array.transpose(0, 3, 1, 2)"),
        (nn.Conv1d(5, 4, 3), "random:1x9x5", "array.transpose(0, 2, 1)"),
        (nn.Conv2d(3, 4, 3), "random:1x1x8x8", "3 channels in dimension 1"),
        (nn.Conv2d(3, 4, 3), "ints:1x3x8x8:0-255", "floating-point"),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
            "random:3x8x8",
            "4 dimensions, got 3",
        ),
        (nn.Linear(4, 2), "random:4x3", "Transpose"),
        (nn.Linear(4, 2), "random:3x5", "column"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "random:1x3x4", "(in_features=4), got 12."),
    ],
)
def test_a_run_that_fails_at_the_input_is_explained_by_the_layer(
    module: nn.Module, word: str, said: str
) -> None:
    with refused(ForwardError, hint=said):
        hookscope.capture(module, input=word)
