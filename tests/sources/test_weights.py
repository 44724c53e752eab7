"""Weights from files: wrappers, mismatches, and no unpickled code."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from blake3 import blake3
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from hookscope.errors import RequestError, WeightsError
from hookscope.sources.loaded import WeightsInfo, WeightsRequest
from hookscope.sources.weights import load_file_into
from tests.refusals import refused
from tests.zoo import Remembers, Tied

Fill = Callable[..., WeightsInfo]


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def write(content: object, path: Path) -> None:
    (save_file if path.suffix == ".safetensors" else torch.save)(content, path)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ``fill`` saves; what a pickle would make is made in its folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "w.pth"


@pytest.fixture
def fill(file: Path) -> Fill:
    """Save something, and load it into a model."""

    def save_and_load(model: nn.Module, content: object, *rename: Any, **more: Any) -> WeightsInfo:
        write(content, file)
        return load_file_into(model, WeightsRequest(str(file), rename, **more))

    return save_and_load


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_weights_are_read_and_hashed(tmp_path: Path, suffix: str) -> None:
    path, source, target = tmp_path / f"w{suffix}", net(1), net()
    write(source.state_dict(), path)
    info = load_file_into(target, WeightsRequest(str(path)))
    assert same(target, source)
    assert (info.missing, info.unexpected, info.stripped) == ((), (), ())
    assert info.blake3 == blake3(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("rename", "stripped"),
    [
        (lambda name: f"module.{name}", ("module.",)),
        (lambda name: f"_orig_mod.{name}", ("_orig_mod.",)),
        (lambda name: f"module._orig_mod.{name}", ("_orig_mod.", "module.")),
        (lambda name: name.replace("0.", "0._fsdp_wrapped_module."), ("_fsdp_wrapped_module.",)),
        (lambda name: f"module.module.{name}", ("module.",)),
    ],
)
def test_prefixes_of_wrappers_are_taken_off(fill: Fill, rename, stripped) -> None:
    target = net()
    info = fill(target, {rename(name): value for name, value in net(1).state_dict().items()})
    assert same(target, net(1))
    assert (info.stripped, info.missing, info.unexpected) == (stripped, (), ())


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_checkpoints_are_opened_and_a_module_that_is_called_module_keeps_its_name(
    fill: Fill, key: str
) -> None:
    source, target = nn.ModuleDict({"module": net(1)}), nn.ModuleDict({"module": net()})
    state = {"epoch": 3, key: source.state_dict(), "step": torch.tensor(5)}
    assert fill(target, state).stripped == ()
    assert same(target, source)


LACKS = ["", "0.bias", "0.weight", "1.running_mean", "1.num_batches_tracked"]


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("lacks", LACKS)
def test_a_file_is_refused_where_strict_loading_refuses_it(
    tmp_path: Path, suffix: str, lacks: str
) -> None:
    path, state = tmp_path / f"w{suffix}", dict(net(1).state_dict())
    state.pop(lacks, None)
    write(state, path)
    try:
        net().load_state_dict(state)
        fits = True
    except RuntimeError:
        fits = False
    assert fits is (lacks in ("", "1.num_batches_tracked"))
    if fits:
        assert load_file_into(net(), WeightsRequest(str(path))).missing == ()
        return
    with refused(
        WeightsError, f"6 of the model's 7 tensors .*missing: {lacks}", hint="--partial", status=2
    ):
        load_file_into(net(), WeightsRequest(str(path)))
    assert load_file_into(net(), WeightsRequest(str(path), partial=True)).missing == (lacks,)


@pytest.mark.parametrize(("make", "lacks"), [(Remembers, ""), (Tied, "head.weight")])
def test_a_buffer_that_is_not_saved_and_a_tied_weight_are_not_missing(
    fill: Fill, make: type[nn.Module], lacks: str
) -> None:
    state = make().state_dict()
    state.pop(lacks, None)
    assert fill(make(), state).missing == ()


def test_state_besides_tensors_that_is_missing_is_named(fill: Fill) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> str:
            return "extra"

        def set_extra_state(self, state: str) -> None:
            pass

    with pytest.raises(WeightsError, match="missing: _extra_state"):
        fill(Extra(2, 2), nn.Linear(2, 2).state_dict())


def test_missing_names_beside_unexpected_ones_hint_at_renaming(fill: Fill) -> None:
    state = net(1).state_dict()
    state["0.offset"] = state.pop("0.bias")
    with refused(WeightsError, r"missing: 0\.bias; unexpected: 0\.offset", hint="--rename"):
        fill(net(), state)
    assert fill(net(), state, ("0.offset", "0.bias")).missing == ()


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("resnet18", "ResNet"),
        ("densenet121", "DenseNet"),
        ("vgg11", "VGG"),
        ("alexnet", "AlexNet"),
        ("mobilenet_v2", "MobileNet"),
        ("mobilenet_v3_small", "MobileNet"),
        ("efficientnet_b0", "EfficientNet"),
        ("convnext_tiny", "ConvNeXt"),
        ("swin_t", "Swin"),
        ("vit_b_16", "vision transformer"),
    ],
)
def test_the_family_of_a_wrong_models_checkpoint_is_named(
    fill: Fill, model: str, family: str
) -> None:
    with torch.device("meta"):
        names = torchvision.models.get_model(model).state_dict()
    with pytest.raises(WeightsError, match=family):
        fill(
            nn.ModuleDict({"own": nn.Linear(2, 2)}),
            dict.fromkeys((f"module.{name}" for name in names), torch.ones(1)),
        )


def test_partial_takes_what_fits_and_lists_the_rest(
    fill: Fill, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, target = net(1).state_dict(), net()
    kept = target[0].weight.clone(), target[0].bias.clone()
    with caplog.at_level(logging.WARNING, "hookscope"):
        info = fill(target, {**state, "0.weight": torch.ones(7, 3)}, partial=True)
    assert torch.equal(target[0].weight, kept[0])
    assert torch.equal(target[0].bias, state["0.bias"])
    [message] = caplog.messages
    assert str(file) in message and "0.weight (7x3 instead of 4x3)" in message
    assert info.missing == ("0.weight",)
    del state["0.bias"]
    target, state["head.weight"] = net(), torch.ones(1)
    with caplog.at_level(logging.WARNING, "hookscope"):
        info = fill(target, state, partial=True)
    assert (info.missing, info.unexpected) == (("0.bias",), ("head.weight",))
    assert torch.equal(target[0].bias, kept[1])
    assert "0.bias" in caplog.text and "head.weight" in caplog.text


def test_partial_with_nothing_that_fits_is_refused(fill: Fill) -> None:
    state = {"0.weight": torch.ones(7, 3), "0.bias": torch.tensor(3.0)}
    with pytest.raises(WeightsError, match=r"0 of .*7x3 instead of 4x3.*one number instead of 4"):
        fill(net(), state, partial=True)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w')",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (net(), "torch.nn.modules.container.Sequential"),
        ({"state_dict": Evil()}, "unpickle"),
        ([1, 2], "no named weights"),
        ({"epoch": 3}, "no named weights"),
        ({"state_dict": {}}, "no named weights"),
        ({"net.0.bias": torch.ones(4)}, "net.0.bias"),
        ({"net.0.bias": torch.ones(4)}, "has 0.weight"),
        ({"x": torch.ones(1)}, "0 of the model's 7"),
        ({"0.weight": torch.ones(2, 2), "0.bias": torch.ones(4)}, "1 of the model's 7"),
        (nn.Sequential(nn.Linear(5, 4)).state_dict(), "0.weight (4x5 instead of 4x3); missing: 1."),
    ],
)
def test_content_that_is_no_fitting_weights_is_refused(
    fill: Fill, content: object, message: str
) -> None:
    with refused(WeightsError, message=message):
        fill(net(), content)
    assert not Path("ran").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("length", [0, 9, 200])
def test_a_damaged_file_is_refused(tmp_path: Path, suffix: str, length: int) -> None:
    path = tmp_path / f"w{suffix}"
    write(net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:length])
    with refused(WeightsError, message=str(path), hint="again"):
        load_file_into(net(), WeightsRequest(str(path)))


@pytest.mark.parametrize("data", [b"hello", pickle.dumps(Evil()), b"PK\x03\x04", b"\x80"])
def test_a_file_that_pytorch_never_wrote_is_refused(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    with pytest.raises(WeightsError):
        load_file_into(net(), WeightsRequest("w.pth"))
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["photo.png", "photo.pth", "photo.safetensors"])
def test_an_image_is_told_for_what_it_is(tmp_path: Path, name: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / name, "PNG")
    with refused(WeightsError, "image", hint="--input"):
        load_file_into(net(), WeightsRequest(str(tmp_path / name)))


def test_torchscript_is_not_read_as_weights(repo: Path) -> None:
    with refused(WeightsError, "TorchScript", hint="Weights"):
        load_file_into(net(), WeightsRequest(str(repo / "sample_models" / "digits_scripted.pt")))


def test_a_missing_file_is_a_wrong_request(file: Path) -> None:
    with refused(RequestError, status=2):
        load_file_into(net(), WeightsRequest(str(file)))


def two(first: str, second: str, seed: int = 0) -> nn.ModuleDict:
    return nn.ModuleDict({first: net(seed), second: nn.ModuleDict({"in": net(seed + 5)})})


@pytest.mark.parametrize(
    ("stored", "rename"),
    [
        (lambda name: name, {"backbone": "body", "head": "neck"}),
        (lambda name: f"module.{name}", {"backbone": "body", "head": "neck"}),
        (lambda name: f"module.{name}", {"module.backbone": "body", "head": "neck"}),
        (lambda name: f"module.{name}", {"module.backbone": "body", "module.head": "neck"}),
        (lambda name: f"_orig_mod.{name}", {"backbone": "body", "head": "neck"}),
        (lambda name: f"net.{name}", {"net.backbone": "body", "net.head": "neck"}),
        (lambda name: f"net.{name}", {"net": "", "net.backbone": "body", "net.head": "neck"}),
        (lambda name: name.replace("head.in", "in"), {"backbone": "body", "in": "neck.in"}),
        (lambda name: name.replace("head.in.", ""), {"": "neck.in", "backbone": "body"}),
    ],
)
def test_prefixes_are_replaced_as_they_stand_or_without_wrappers(
    fill: Fill, stored, rename: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hookscope")
    state, target = two("backbone", "head", 1).state_dict(), two("body", "neck")
    info = fill(target, {stored(name): state[name] for name in state}, *rename.items())
    assert f"renamed {len(state)} keys" in caplog.text
    assert same(target, two("body", "neck", 1))
    assert (info.missing, info.unexpected) == ((), ())


def test_the_longest_prefix_counts_and_only_whole_parts_of_names(fill: Fill) -> None:
    target = nn.Module()
    for name, length in (("x", 1), ("ab", 2), ("y", 3)):
        target.add_module(name, nn.Module())
        target.get_submodule(name).w = nn.Parameter(torch.zeros(length))
    state = {"a.w": torch.ones(1), "ab.w": torch.ones(2), "a.b.w": torch.ones(3)}
    info = fill(target, state, ("a", "x"), ("a.b", "y"))
    assert (info.missing, info.unexpected) == ((), ())


@pytest.mark.parametrize(
    ("rename", "message", "hint"),
    [
        ({"bakbone": "body"}, "'bakbone'", "backbone"),
        ({"back": "body"}, "'back'", "backbone"),
        ({"zzz": "body"}, "'zzz'", "whole parts"),
        ({"backbone.0": "same", "backbone.1": "same"}, "'same.", "each prefix"),
        ({"backbone": "elsewhere"}, "0 of the model's", "--rename"),
    ],
)
def test_a_prefix_that_cannot_be_replaced_is_a_wrong_request(
    fill: Fill, rename: dict[str, str], message: str, hint: str
) -> None:
    with refused(WeightsError, message=message, hint=hint, status=2):
        fill(net(), nn.ModuleDict({"backbone": net()}).state_dict(), *rename.items())
