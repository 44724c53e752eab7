"""Models of torchvision are built without network, and get valid inputs."""

from __future__ import annotations

import gc
import logging
import warnings
from pathlib import Path

import pytest
import torch
from torchvision import models

from hookscope import load_model as load
from hookscope.inputs.batch import build_batch
from hookscope.sources.loaded import LoadedModel
from hookscope.specs.catalog import bundled_models
from hookscope.specs.value_readers import CommandLineText
from hookscope.tensors.nested import as_call
from tests.processes import run_python

DETECTOR = "fasterrcnn_mobilenet_v3_large_320_fpn"
SAMPLE = ["lraspp_mobilenet_v3_large", "r3d_18"]
SAMPLE += ["quantized_mobilenet_v2", "regnet_y_400mf", "swin_v2_t"]

# Half a pyramid is enough to see that a model runs. These take one size only, or a least one.
FIXED = ("vit_", "maxvit", "swin_v2", "mvit", "inception", "raft")


@pytest.mark.parametrize("name", ["resnet18", "mnasnet0_5"])
def test_random_weights_are_those_torchvision_makes_from_the_seed(name: str) -> None:
    state = torch.get_rng_state()
    ours = load(name, seed=3).module.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = models.get_model(name, weights=None).state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    others = load(name, seed=4).module.state_dict()
    assert not all(torch.equal(ours[key], others[key]) for key in ours)


def test_warnings_of_torchvision_about_itself_are_kept_from_the_user() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load("googlenet", meta=True)  # says that its initialization is slow and will change
    assert not caught


def test_what_is_known_of_a_model_comes_along() -> None:
    loaded = load("resnet18")
    assert (loaded.name, loaded.spec, loaded.source) == ("resnet18", "resnet18", "torchvision")
    assert loaded.task == "classification"
    assert loaded.categories[:3] == ("tench", "goldfish", "great white shark")
    assert loaded.weights.name == "random"
    assert loaded.weights.blake3 is None
    assert load("ssd300_vgg16", meta=True).categories[1] == "person"
    assert load("fcn_resnet50", meta=True).categories[15] == "person"
    assert load("raft_small", meta=True).categories == ()


def test_a_quantized_name_gives_the_float_model_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "hookscope"):
        loaded = load("quantized_resnet18")
    assert loaded.task == "quantized"
    assert all(p.dtype is torch.float32 for p in loaded.module.parameters())
    assert "built" in caplog.text
    assert "random from seed 0" in caplog.text


def test_a_vision_transformer_is_built_for_the_size_of_its_recipe() -> None:
    loaded = load("vit_h_14", meta=True)
    assert loaded.module.image_size == 518
    assert loaded.shape == (1, 3, 518, 518)
    small = load("vit_b_16", meta=True, model_args={"image_size": CommandLineText("64")})
    assert small.shape == (1, 3, 64, 64)
    assert "centre crop 64x64" in small.recipe


def test_model_arguments_reach_the_builder() -> None:
    loaded = load("resnet18", meta=True, model_args={"num_classes": CommandLineText("7")})
    assert loaded.module.fc.out_features == 7
    assert loaded.categories == ()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account")
def test_building_on_meta_takes_no_memory_beside_the_import() -> None:
    # Not getrusage: a child's ru_maxrss starts from that of the process it was forked from.
    peak = "[line for line in open('/proc/self/status') if 'VmHWM' in line][0].split()[1]"
    lean = f"import torchvision; print({peak})"
    load = "from hookscope import load_model as load\nload('vit_h_14', meta=True)"
    ours = f"{load}; print({peak})"
    lean_peak, our_peak = (int(run_python("-c", code, status=0).stdout) for code in (lean, ours))
    assert our_peak <= 1.1 * lean_peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("RuntimeError('operator torchvision::nms does not exist')", "--upgrade torch torchvision"),
        ("ModuleNotFoundError('No torchvision', name='torchvision')", "pip install torchvision"),
    ],
)
def test_a_broken_installation_is_told_with_its_repair(
    tmp_path: Path, repo: Path, error: str, hint: str
) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(f"raise {error}")
    script = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(repo)!r}]\n"
        "from hookscope.errors import EnvironmentFault\n"
        "from hookscope import load_model as load\n"
        "try: load('resnet18')\n"
        "except EnvironmentFault as exc: print(exc)"
    )
    assert hint in run_python("-c", script).stdout


def small_shape(loaded: LoadedModel) -> tuple[int, ...] | None:
    if loaded.shape is None or loaded.name.startswith(FIXED):
        return None
    side = {"detection": 320, "video": 112}.get(loaded.task, 96)
    if loaded.name in ("s3d", "swin_t", "swin_s", "swin_b"):
        side = 224
    return (*loaded.shape[:-2], side, side)


@pytest.mark.parametrize(
    ("name", "small"),
    [
        *((name, False) for name in ("resnet18", "raft_small", DETECTOR)),
        *((name, True) for name in SAMPLE),
        *(
            pytest.param(info.name, True, marks=pytest.mark.exhaustive)
            for info in bundled_models()
            if info.name not in SAMPLE
        ),
    ],
)
def test_a_model_is_on_meta_what_it_is_with_values_and_runs_on_its_example(
    name: str, small: bool
) -> None:
    meta, loaded = load(name, meta=True), load(name)
    ours, theirs = meta.module.state_dict(), loaded.module.state_dict()
    assert {key: (value.shape, value.dtype) for key, value in ours.items()} == {
        key: (value.shape, value.dtype) for key, value in theirs.items()
    }
    assert all(value.is_meta for value in ours.values())
    assert [type(m) for m in meta.module.modules()] == [type(m) for m in loaded.module.modules()]
    assert not meta.module.training
    assert not loaded.module.training
    batch = build_batch(loaded, shape=small_shape(meta) if small else None)
    args, kwargs = as_call(batch.value)
    with torch.no_grad():
        loaded.module(*args, **kwargs)
    gc.collect()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [info.name for info in bundled_models() if info.task != "detection"]
)
def test_every_model_takes_noise_of_the_size_of_its_recipe(name: str, repo: Path) -> None:
    loaded = load(name, meta=True)
    batch = build_batch(loaded, str(repo / "img.png"))
    noise = build_batch(loaded)
    if loaded.task not in ("segmentation", "optical flow"):
        sizes = {source["shape"].split("x")[-2:][0] for source in (*batch.sources, *noise.sources)}
        assert len(sizes) == 1
